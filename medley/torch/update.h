#pragma once

// The arithmetic of the optimizers on lists of tensors. Knows nothing of slots.

#include <ATen/core/Tensor.h>

#include <vector>

namespace medley {

// One parameter with its state; what an optimizer does not use is undefined. After the call: the
// new values, in the memory of the old where nobody else holds it. Tensors without elements are
// left alone.
struct Updated {
  at::Tensor parameter, gradient, first, second, master;
};

// `scalars`: f64[3] learning rate, step, clip scale.
struct AdamwHyperparameters {
  double beta1, beta2, epsilon, weight_decay;
};
void adamw(std::vector<Updated>& parameters,
           const at::Tensor& scalars,
           const AdamwHyperparameters& hyperparameters);

struct SgdHyperparameters {
  double momentum, weight_decay;
  bool nesterov;
};
void sgd(std::vector<Updated>& parameters,
         const at::Tensor& scalars,
         const SgdHyperparameters& hyperparameters);

}  // namespace medley
