#include "medley/kernels/update_matrix.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "medley/base/error.h"
#include "medley/kernels/update_parts.h"

namespace medley {
namespace {

double root_mean_square(const at::Tensor& x) {
  return x.norm().item().toDouble() / std::sqrt(static_cast<double>(x.numel()));
}

double epsilon_of(c10::ScalarType type) {
  return type == c10::kDouble ? std::numeric_limits<double>::epsilon()
                              : static_cast<double>(std::numeric_limits<float>::epsilon());
}

at::Tensor mean_square(const at::Tensor& x, int64_t dim) {
  return x.norm(2, {dim}, /*keepdim=*/true).square_().div_(static_cast<double>(x.size(dim)));
}

// Returns a matrix with all its singular values between about 0.7 and 1.2.
at::Tensor orthogonalized(const at::Tensor& matrix, const std::vector<double>& numbers) {
  const double a = numbers[2], b = numbers[3], c = numbers[4];
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.scalar_type() == c10::kDouble ? matrix : matrix.to(c10::kBFloat16);
  if (tall) x = x.t();
  x = x.div(x.norm().clamp_min(numbers[5]));
  for (int i = 0; i < static_cast<int>(numbers[6]); ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    const at::Tensor update = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, update, x, a, 1);
  }
  return tall ? x.t() : x;
}

}  // namespace

void adafactor(std::vector<Updated>& parameters, const UpdateNow& now) {
  const double share = std::pow(now.step, now.numbers[0]);  // share of the newest moments
  const double rate = std::min(now.learning_rate, 1 / std::sqrt(now.step));
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    at::Tensor &rows = each.states[0], &columns = each.states[1];
    const at::Tensor& gradient = each.gradient;
    const double epsilon =
        now.numbers[1] > 0 ? now.numbers[1] : epsilon_of(each.parameter.scalar_type());
    const double step = std::max(now.numbers[2], root_mean_square(into)) * rate;
    if (now.numbers[4] != 0) into.mul_(1 - now.learning_rate * now.numbers[4]);
    at::Tensor moment;
    if (columns.defined()) {
      rows.lerp_(mean_square(gradient, -1), share);
      columns.lerp_(mean_square(gradient, -2), share);
      moment = at::matmul(rows, columns);
      moment.div_(rows.mean({-2}, /*keepdim=*/true).clamp_min_(epsilon));
    } else {
      rows.lerp_(gradient.square(), share);
      moment = rows.clone();
    }
    const at::Tensor update = moment.clamp_min_(epsilon * epsilon).rsqrt_().mul_(gradient);
    into.add_(update, -step / std::max(1.0, root_mean_square(update) / now.numbers[3]));
    copy_master(each);
  }
}

void muon(std::vector<Updated>& parameters, const UpdateNow& now) {
  const double momentum = now.numbers[0];
  for (Updated& each : parameters) {
    if (each.parameter.dim() != 2)
      throw Error(Blame::kCaller,
                  "optimizer muon: found a parameter that is no matrix, expected another "
                  "optimizer for it: medley.Groups");
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    at::Tensor& average = each.states[0];
    average.lerp_(each.gradient, 1 - momentum);
    const at::Tensor update = orthogonalized(
        now.numbers[7] != 0 ? each.gradient.lerp(average, momentum) : average, now.numbers);
    const auto height = static_cast<double>(into.size(0)),
               width = static_cast<double>(into.size(1));
    const double scale = now.numbers[8] != 0 ? 0.2 * std::sqrt(std::max(height, width))
                                             : std::sqrt(std::max(1.0, height / width));
    into.mul_(1 - now.learning_rate * now.numbers[1]);
    into.add_(update, -now.learning_rate * scale);
    copy_master(each);
  }
}

}  // namespace medley
