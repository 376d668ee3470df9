#pragma once

// The arithmetic of the optimizers on lists of tensors. Knows nothing of slots.

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace medley {

// One parameter with its state, as its update op has it (ops/update_ops.h); what there is none of
// is undefined. After the call: the new values, in the memory of the old where nobody else holds
// it. Tensors without elements are left alone.
struct Updated {
  at::Tensor parameter, gradient;
  std::vector<at::Tensor> states;
  at::Tensor master;
};

// The numbers of one step: scalars of the op (ops/local_ops.h), and its numbers, a flag as 0 or 1.
struct UpdateNow {
  double learning_rate, step, clip_scale;
  std::vector<double> numbers;
  double kept = std::numeric_limits<double>::quiet_NaN();      // share of an average; NaN: constant
  double max_value = std::numeric_limits<double>::infinity();  // of an element of the gradient
  bool skips() const { return std::isnan(clip_scale); }        // the step changes nothing
};
// Reads the scalars. Their numbers replace `numbers`, the constants of the op, if they have any.
UpdateNow read_scalars(const at::Tensor& scalars, const std::vector<double>& numbers);

// Requires: the step is not one that `now` skips.
using Update = void (*)(std::vector<Updated>& parameters, const UpdateNow& now);

// Requires: `op` is one of update_ops(), without a program.
Update find_update(std::string_view op);

}  // namespace medley
