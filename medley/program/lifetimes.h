#pragma once

#include <map>
#include <vector>

#include "medley/program/walk.h"

namespace medley {

// Posts the gathering of each parameter before the one before it is awaited, so that it travels
// while that one is computed with. At most two are in flight: parameters are stored in shards to
// save memory.
void prefetch_parameters(const LoweredStage& stage, std::vector<Item>& order);

// Drops ops and collectives whose results nobody reads, such as the view of a shard that was
// gathered before the view instead. `keep` is read.
void drop_unused(const LoweredStage& stage,
                 std::map<Phase, std::vector<Item>>& items,
                 const std::vector<ValueId>& keep);

// Splits the orders of the phases into functions: segments between communications, and what dies
// where. `keep`: kStep values that live on after their last use.
std::vector<Function> make_functions(const LoweredStage& stage,
                                     const std::map<Phase, std::vector<Item>>& items,
                                     const std::vector<ValueId>& keep);

}  // namespace medley
