#pragma once

// The symbols whose values determine a device's step: in sizes of tensors and messages, and in
// integer arguments of ops. Micro-batches with equal values have equal steps.

#include <span>
#include <vector>

#include "medley/program/program.h"

namespace medley {

// Returns them ascending, each once.
std::vector<Symbol> symbols_read(const LoweredStage& stage, std::span<const Step> steps);

// Returns [microbatch] the first one with equal exchanges on all devices.
std::vector<int> first_identical(const LoweredStage& stage);

// Returns their values in a table.
std::vector<int64_t> values_of(const std::vector<Symbol>& symbols,
                               const std::vector<int64_t>& table);

}  // namespace medley
