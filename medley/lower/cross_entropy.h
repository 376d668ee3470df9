#pragma once

// The cross entropy of logits of which a device has all classes: between forward and backward are
// kept the logits, as they are, and a number per row in the place of log-probabilities:
//
//   x = cast(logits)                      log_sum_exp(logits) -> l, one number per row
//   p = _log_softmax(x)                   cross_entropy(logits, l, target) -> loss
//   nll_loss_forward(p, target) -> loss
//   d = nll_loss_backward(g, p, target)   cross_entropy_backward(logits, l, g, target) -> e, of the
//   e = cast(_log_softmax_backward(d, p))   type of the logits, whose place it takes if they die
//
// Where the classes are cut, other ops stand in the place of _log_softmax, and nothing changes. Nor
// does it where anybody else reads log-probabilities, or where there are few classes: for a GPU, of
// which this takes a little longer, in terms of its memory.

#include <cstdint>
#include <map>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/program/walk.h"

namespace medley {

// Of how many classes on these devices.
int64_t fewest_classes(const std::vector<int>& devices, const Cluster& cluster);

// Requires: no item is unused; `keep` is read.
void fuse_cross_entropy(LoweredStage& stage,
                        int64_t fewest_classes,
                        std::map<Phase, std::vector<Item>>& items,
                        const std::vector<ValueId>& keep);

}  // namespace medley
