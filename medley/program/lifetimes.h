#pragma once

#include <map>
#include <vector>

#include "medley/program/emitter.h"

namespace medley {

// Splits the orders of the phases into functions: segments between communications, and what dies
// where. `keep`: kStep values that live on after their last use.
std::vector<Function> make_functions(const LoweredStage& stage,
                                     const std::map<Phase, std::vector<Item>>& items,
                                     const std::vector<ValueId>& keep);

}  // namespace medley
