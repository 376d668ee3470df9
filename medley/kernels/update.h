#pragma once

// The arithmetic of the optimizers on lists of tensors. Knows nothing of slots.

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace medley {

// One parameter with its state, as in its update op (ops/update_ops.h); absent tensors are
// undefined. The update stores new values in the old memory if it is unshared. It ignores tensors
// without elements.
struct Updated {
  at::Tensor parameter, gradient;
  std::vector<at::Tensor> states;
  at::Tensor master;
};

// The values of one step: scalars of the op (ops/local_ops.h), and its numbers, flags as 0 or 1.
struct UpdateNow {
  double learning_rate, step, clip_scale;
  std::vector<double> numbers;
  double kept = std::numeric_limits<double>::quiet_NaN();      // share of an average; NaN: constant
  double max_value = std::numeric_limits<double>::infinity();  // limit of a gradient element
  bool skips() const { return std::isnan(clip_scale); }        // the step changes no value
};
// Reads the scalars. Their numbers, if any, replace `numbers`, the constants of the op.
UpdateNow read_scalars(const at::Tensor& scalars, const std::vector<double>& numbers);

// Requires: `now` does not skip the step.
using Update = void (*)(std::vector<Updated>& parameters, const UpdateNow& now);

// Requires: `op` is one of update_ops(), without a program.
Update find_update(std::string_view op);

}  // namespace medley
