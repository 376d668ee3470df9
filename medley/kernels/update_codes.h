#pragma once

// AdamW with moments in eight bits.

#include "medley/kernels/update.h"

namespace medley {

// https://arxiv.org/abs/2110.02861, with the rows of a tensor as blocks: a moment is a code times
// the largest of its row. Codes are those of the paper's dynamic trees: 0, and seven decades below
// 1 with resolution rising with size. A nonzero second moment never gets code zero, which would
// divide the step by epsilon. In a vector every element is a row, which is lossless. Numbers:
// beta1, beta2, epsilon, weight decay.
void adamw8(std::vector<Updated>& parameters, const UpdateNow& now);

}  // namespace medley
