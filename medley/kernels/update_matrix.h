#pragma once

// Optimizers whose step of an element depends on the whole tensor.

#include "medley/kernels/update.h"

namespace medley {

// https://arxiv.org/abs/1804.04235, as torch.optim.Adafactor: factored second moments of the last
// two dims, of a vector all of it. Numbers: exponent by which the decay of the moments falls, the
// least root of a moment (0: that of the dtype), the least size of a parameter, the largest mean
// square of a step, weight decay.
void adafactor(std::vector<Updated>& parameters, const UpdateNow& now);

// https://kellerjordan.github.io/posts/muon/, as torch.optim.Muon: the momentum of a matrix, with
// all its singular values near 1. The iteration is in bf16, that of f64 in f64. Numbers: momentum,
// weight decay, the three coefficients of the iteration, epsilon, iterations; flags: Nesterov's
// momentum, steps as large as AdamW's.
// Requires: matrices.
void muon(std::vector<Updated>& parameters, const UpdateNow& now);

}  // namespace medley
