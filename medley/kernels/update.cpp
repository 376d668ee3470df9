#include "medley/kernels/update.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <map>

#include "medley/kernels/update_codes.h"
#include "medley/kernels/update_matrix.h"
#include "medley/kernels/update_parts.h"

namespace medley {
namespace {

at::Tensor flat(const at::Tensor& tensor) { return tensor.view({-1}); }

// The fused kernel's flat inputs for a parameter: itself, its gradient, its two moments.
constexpr size_t kNumFields = 4;
using Fields = std::array<at::Tensor, kNumFields>;
using Types = std::pair<c10::ScalarType, c10::ScalarType>;

// On a CPU the fused kernel computes whole vectors at once and the rest of a tensor one by one,
// with other rounding. An element's new value would thus depend on its shard, and differ between
// stages. To avoid that, the rests of all tensors are computed as vectors in one padded tensor.
class Remainders {
 public:
  // Leaves whole vectors of each part, and appends a part with the rests.
  explicit Remainders(std::vector<Fields>& parts) {
    Fields rest;
    int64_t length = 0;
    for (Fields& part : parts) {
      const int64_t whole = part[0].numel() / kElements * kElements;
      const int64_t left = part[0].numel() - whole;
      if (left == 0 || !part[0].is_cpu()) continue;
      for (at::Tensor& field : part) {
        pieces_.push_back(field.narrow(0, whole, left));
        field = field.narrow(0, 0, whole);
      }
      length += left;
    }
    if (pieces_.empty()) return;
    const int64_t padded = (length + kElements - 1) / kElements * kElements;
    for (size_t field = 0; field < kNumFields; ++field) {
      rest[field] = at::zeros({padded}, pieces_[field].options());
      int64_t next = 0;
      for (size_t i = field; i < pieces_.size(); i += kNumFields) {
        rest[field].narrow(0, next, pieces_[i].numel()).copy_(pieces_[i]);
        next += pieces_[i].numel();
      }
    }
    parts.push_back(rest);
    rest_ = rest;
  }

  void put_back() {
    int64_t next = 0;
    for (size_t i = 0; i < pieces_.size(); i += kNumFields) {
      const int64_t length = pieces_[i].numel();
      for (size_t field = 0; field < kNumFields; ++field)
        if (field != kGradient) pieces_[i + field].copy_(rest_[field].narrow(0, next, length));
      next += length;
    }
  }

 private:
  static constexpr int64_t kElements = 64;  // a multiple of every vector's
  static constexpr size_t kGradient = 1;
  std::vector<at::Tensor> pieces_;  // the fields of one tensor after the other
  Fields rest_;
};

using Lists = std::array<std::vector<at::Tensor>, kNumFields>;

// Updates by a fused kernel, with decoupled weight decay or not. Numbers: beta1, beta2, epsilon,
// weight decay.
template <typename Kernel>
void fused(std::vector<Updated>& parameters, const UpdateNow& now) {
  // A fused call takes tensors of one type only.
  std::map<Types, std::vector<Fields>> parts;
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    const at::Tensor& into = prepare_update(each, now);
    parts[{into.scalar_type(), each.states[0].scalar_type()}].push_back(
        {flat(into), flat(each.gradient.contiguous()), flat(each.states[0]), flat(each.states[1])});
  }
  for (auto& [types, all] : parts) {
    Remainders remainders(all);
    Lists lists;
    std::vector<at::Tensor> steps;
    const at::Tensor step = at::full({}, now.step, all[0][0].options().dtype(c10::kFloat));
    for (const Fields& part : all) {
      if (part[0].numel() == 0) continue;
      for (size_t field = 0; field < kNumFields; ++field) lists[field].push_back(part[field]);
      steps.push_back(step);
    }
    Kernel::call(lists[0],
                 lists[1],
                 lists[2],
                 lists[3],
                 /*max_exp_avg_sqs=*/{},
                 steps,
                 now.learning_rate,
                 now.numbers[0],
                 now.numbers[1],
                 now.numbers[3],
                 now.numbers[2],
                 /*amsgrad=*/false,
                 /*maximize=*/false,
                 /*grad_scale=*/{},
                 /*found_inf=*/{});
    remainders.put_back();
  }
  for (Updated& each : parameters) copy_master(each);
}

// Numbers: momentum, weight decay, Nesterov's momentum.
void sgd(std::vector<Updated>& parameters, const UpdateNow& now) {
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    at::Tensor& momentum = each.states[0];
    at::Tensor direction = each.gradient;
    if (now.numbers[1] != 0) direction = direction.add(into, now.numbers[1]);
    if (momentum.defined() && now.numbers[0] != 0) {
      momentum.mul_(now.numbers[0]).add_(direction);
      direction = now.numbers[2] != 0 ? direction.add(momentum, now.numbers[0]) : momentum;
    }
    into.add_(direction, -now.learning_rate);
    copy_master(each);
  }
}

// https://arxiv.org/abs/2302.06675. Numbers: beta1, beta2, weight decay.
void lion(std::vector<Updated>& parameters, const UpdateNow& now) {
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    at::Tensor& average = each.states[0];
    into.mul_(1 - now.learning_rate * now.numbers[2]);
    into.add_(average.mul(now.numbers[0]).add_(each.gradient, 1 - now.numbers[0]).sign_(),
              -now.learning_rate);
    average.mul_(now.numbers[1]).add_(each.gradient, 1 - now.numbers[1]);
    copy_master(each);
  }
}

}  // namespace

Update find_update(std::string_view op) {
  static const std::map<std::string_view, Update> kUpdates{
      {"medley.adafactor.default", adafactor},
      {"medley.adam.default", fused<at::_ops::_fused_adam_>},
      {"medley.adamw.default", fused<at::_ops::_fused_adamw_>},
      {"medley.adamw8.default", adamw8},
      {"medley.lion.default", lion},
      {"medley.muon.default", muon},
      {"medley.sgd.default", sgd},
  };
  return kUpdates.at(op);
}

}  // namespace medley
