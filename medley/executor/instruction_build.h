#pragma once

// Builds instructions from the ops of a segment, for one table of symbols. Knows nothing of the
// tensors.

#include <c10/core/Device.h>

#include <vector>

#include "medley/executor/instruction.h"
#include "medley/executor/peephole.h"
#include "medley/program/program.h"

namespace medley {

struct PreparedOps {
  std::vector<SegmentOp> ops;
  std::vector<Instruction> instructions;
};

// Throws Error naming the op if this PyTorch lacks it or its arguments do not fit its schema.
PreparedOps build_instructions(const LoweredStage& stage,
                               const Segment& segment,
                               const std::vector<int64_t>& symbols,
                               c10::Device device,
                               DType bf16_as = DType::kBF16);

// Returns the op, its place in the model and its operands' local shapes, for messages:
// "aten.mm.default(f32[4, 8], f32[3, 2]) in transformer.h.0.mlp at gpt.py:12".
std::string describe(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

}  // namespace medley
