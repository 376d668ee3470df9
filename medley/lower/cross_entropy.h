#pragma once

// The cross entropy of logits if a device has all classes. Between forward and backward it keeps
// the logits unchanged and a number per row instead of log-probabilities:
//
//   `x = cast(logits)`                      `log_sum_exp(logits) -> l`, one number per row
//   `p = _log_softmax(x)`                   `cross_entropy(logits, l, target) -> loss`
//   `nll_loss_forward(p, target) -> loss`
//   `d = nll_loss_backward(g, p, target)`   `cross_entropy_backward(logits, l, g, target) -> e`, of
//   `e = cast(_log_softmax_backward(d, p))` the logits' type, whose place it takes if they die
//
// No change if the classes are cut, which uses other ops than _log_softmax, if another op reads
// log-probabilities, or for few classes: on a GPU this takes slightly longer, relative to its
// memory.

#include <cstdint>
#include <map>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/program/walk.h"

namespace medley {

// Returns the least number of classes for these devices.
int64_t fewest_classes(const std::vector<int>& devices, const Cluster& cluster);

// Requires: no item is unused; `keep` is read.
void fuse_cross_entropy(LoweredStage& stage,
                        int64_t fewest_classes,
                        std::map<Phase, std::vector<Item>>& items,
                        const std::vector<ValueId>& keep);

}  // namespace medley
