#pragma once

// The arithmetic of the optimizers on lists of tensors. Knows nothing of slots.

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace medley {

// One parameter with its state, as its update op has it (ops/update_ops.h); what there is none of
// is undefined. After the call: the new values, in the memory of the old where nobody else holds
// it. Tensors without elements are left alone, and all are if the clip scale is NaN.
struct Updated {
  at::Tensor parameter, gradient;
  std::vector<at::Tensor> states;
  at::Tensor master;
};

// `scalars`: f64[3] learning rate, step, clip scale. `numbers`: what the op has behind them, a flag
// as 0 or 1.
using Update = void (*)(std::vector<Updated>& parameters,
                        const at::Tensor& scalars,
                        const std::vector<double>& numbers);

// Requires: `op` is one of update_ops(), without a program.
Update find_update(std::string_view op);

}  // namespace medley
