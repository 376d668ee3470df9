#pragma once

// Optimizers with a step that depends on the whole tensor.

#include "medley/kernels/update.h"

namespace medley {

// https://arxiv.org/abs/1804.04235, like torch.optim.Adafactor: second moments factored over the
// last two dims, or full for a vector. Numbers: decay exponent of the moments, least root of a
// moment (0: that of the dtype), least size of a parameter, largest mean square of a step, weight
// decay.
void adafactor(std::vector<Updated>& parameters, const UpdateNow& now);

// https://kellerjordan.github.io/posts/muon/, like torch.optim.Muon: the momentum of a matrix, with
// all its singular values near 1. The iteration is in bf16, for f64 in f64. Numbers: momentum,
// weight decay, the three coefficients of the iteration, epsilon, iterations. Flags: Nesterov's
// momentum, steps as large as AdamW's. Requires: matrices.
void muon(std::vector<Updated>& parameters, const UpdateNow& now);

}  // namespace medley
