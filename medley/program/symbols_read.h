#pragma once

// The symbols whose values decide what a step does on a device: in sizes of tensors and messages,
// and in integers among the arguments of ops. Micro-batches that agree in them do the same.

#include <span>
#include <vector>

#include "medley/program/program.h"

namespace medley {

// Ascending, each once.
std::vector<Symbol> symbols_read(const LoweredStage& stage, std::span<const Step> steps);

// [microbatch] The first one in which all devices exchange as much as in this one.
std::vector<int> first_alike(const LoweredStage& stage);

// Their values in a table.
std::vector<int64_t> values_of(const std::vector<Symbol>& symbols,
                               const std::vector<int64_t>& table);

}  // namespace medley
