#pragma once

// Whose place the results of a stage's ops take. One rule for memory_use() (memory.h), which
// follows the calls, and for the emulation, which counts along a real run.

#include <array>
#include <vector>

#include "medley/program/program.h"

namespace medley {

// As overwritable() of ops/overwrite.h, of one micro-batch: other values outlive it.
std::array<ValueId, 2> overwritable(const LoweredStage& stage, const Op& op);
// Returns the first of them that dies, or kNone.
ValueId overwritten(const std::array<ValueId, 2>& operands, const std::vector<ValueId>& dies);

}  // namespace medley
