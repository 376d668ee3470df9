#pragma once

#include <map>
#include <vector>

#include "medley/program/walk.h"

namespace medley {

// Posts the all-gather of each parameter before the wait for the one before, so that it overlaps
// with that one's use. At most two are in flight, because parameters are sharded to save memory.
void prefetch_parameters(const LoweredStage& stage, std::vector<Item>& order);

// Drops ops and collectives without readers, such as the view of a shard that was gathered before
// the view instead. `keep` is read.
void drop_unused(const LoweredStage& stage,
                 std::map<Phase, std::vector<Item>>& items,
                 const std::vector<ValueId>& keep);

// Splits the phases into functions of segments and communications, with the values that die at
// each. `keep`: kStep values that outlive their last use.
std::vector<Function> make_functions(const LoweredStage& stage,
                                     const std::map<Phase, std::vector<Item>>& items,
                                     const std::vector<ValueId>& keep);

}  // namespace medley
