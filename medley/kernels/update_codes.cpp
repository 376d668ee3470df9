#include "medley/kernels/update_codes.h"

#include <ATen/ops/bucketize.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "medley/kernels/update_parts.h"

namespace medley {
namespace {

// The values of the codes. Code 0 is 0, so that zeroed state is an optimizer's initial state.
class CodeBook {
 public:
  CodeBook(bool is_signed, const at::TensorOptions& options) {
    std::vector<double> values{0, 1};
    for (int decade = 0; decade < kDecades; ++decade) {
      const int count = 1 << (decade + (is_signed ? 0 : 1));
      for (int i = 0; i < count; ++i) {
        const double middle = 0.1 + 0.9 * (i + 0.5) / count;
        values.push_back(std::pow(10.0, decade + 1 - kDecades) * middle);
        if (is_signed) values.push_back(-values.back());
      }
    }
    std::sort(values.begin(), values.end());
    zero_ = std::find(values.begin(), values.end(), 0.0) - values.begin();
    std::vector<double> between;
    for (size_t i = 1; i < values.size(); ++i) between.push_back((values[i - 1] + values[i]) / 2);
    if (!is_signed) between[0] = kNearZero;
    std::rotate(values.begin(), values.begin() + zero_, values.end());
    values_ = at::tensor(values, at::kDouble).to(options);
    between_ = at::tensor(between, at::kDouble).to(options);
  }

  at::Tensor decode(const at::Tensor& codes, const at::Tensor& scale) const {
    return values_.index_select(0, codes.flatten().to(at::kInt)).view(codes.sizes()).mul_(scale);
  }

  void encode(const at::Tensor& x, at::Tensor& codes, at::Tensor& scale) const {
    scale.copy_(x.dim() < 2 ? x.abs() : x.abs().amax({-1}, /*keepdim=*/true));
    const at::Tensor shares = x.div(scale.clamp_min(kLeast));
    codes.copy_(at::bucketize(shares, between_).sub_(zero_).bitwise_and_(255));
  }

 private:
  static constexpr int kDecades = 7;
  static constexpr double kNearZero = 1e-30, kLeast = 1e-37;
  int64_t zero_ = 0;  // its index among the sorted values
  at::Tensor values_, between_;
};

}  // namespace

void adamw8(std::vector<Updated>& parameters, const UpdateNow& now) {
  const double beta1 = now.numbers[0], beta2 = now.numbers[1];
  const double correction1 = 1 - std::pow(beta1, now.step),
               correction2 = 1 - std::pow(beta2, now.step);
  std::map<c10::ScalarType, std::pair<CodeBook, CodeBook>> books;
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    if (!books.contains(into.scalar_type()))
      books.emplace(into.scalar_type(),
                    std::pair(CodeBook(true, into.options()), CodeBook(false, into.options())));
    const auto& [first, second] = books.at(into.scalar_type());
    at::Tensor average = first.decode(each.states[0], each.states[1]);
    at::Tensor squares = second.decode(each.states[2], each.states[3]);
    average.lerp_(each.gradient, 1 - beta1);
    squares.mul_(beta2).addcmul_(each.gradient, each.gradient, 1 - beta2);
    into.mul_(1 - now.learning_rate * now.numbers[3]);
    const at::Tensor divisor = squares.sqrt().div_(std::sqrt(correction2)).add_(now.numbers[2]);
    into.addcdiv_(average, divisor, -now.learning_rate / correction1);
    first.encode(average, each.states[0], each.states[1]);
    second.encode(squares, each.states[2], each.states[3]);
    copy_master(each);
  }
}

}  // namespace medley
