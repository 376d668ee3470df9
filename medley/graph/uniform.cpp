#include "medley/graph/uniform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "medley/base/at.h"
#include "medley/graph/rewrite.h"

namespace medley {
namespace {

// Ops that fill a tensor, with the argument of the number; kNone: the number is `number`.
struct Fill {
  std::string_view name;
  int argument;
  double number;
};
constexpr std::array<Fill, 10> kFills{{{"aten.full.default", 1, 0},
                                       {"aten.full_like.default", 1, 0},
                                       {"aten.new_full.default", 2, 0},
                                       {"aten.new_ones.default", kNone, 1},
                                       {"aten.new_zeros.default", kNone, 0},
                                       {"aten.ones.default", kNone, 1},
                                       {"aten.ones_like.default", kNone, 1},
                                       {"aten.scalar_tensor.default", 0, 0},
                                       {"aten.zeros.default", kNone, 0},
                                       {"aten.zeros_like.default", kNone, 0}}};

// Ops whose result has only elements of the first operand.
constexpr std::array<std::string_view, 18> kRearrangements{"aten._to_copy.default",
                                                           "aten._unsafe_view.default",
                                                           "aten.alias.default",
                                                           "aten.clone.default",
                                                           "aten.detach.default",
                                                           "aten.expand.default",
                                                           "aten.lift_fresh_copy.default",
                                                           "aten.permute.default",
                                                           "aten.repeat.default",
                                                           "aten.reshape.default",
                                                           "aten.select.int",
                                                           "aten.slice.Tensor",
                                                           "aten.squeeze.default",
                                                           "aten.squeeze.dim",
                                                           "aten.t.default",
                                                           "aten.transpose.int",
                                                           "aten.unsqueeze.default",
                                                           "aten.view.default"};

}  // namespace

std::optional<double> stored_as(DType dtype, double number) {
  if (dtype == DType::kF64) return number;
  if (dtype == DType::kF32) return static_cast<double>(static_cast<float>(number));
  const double limit = dtype == DType::kBool ? 1 : 100;  // exact in every other dtype
  if (number < 0 || number > limit || number != std::floor(number)) return std::nullopt;
  return number;
}

void UniformValues::update(const Graph& graph) {
  known_.resize(graph.values.size());
  for (; ops_seen_ < graph.ops.size(); ++ops_seen_) {
    const Op& op = graph.ops[ops_seen_];
    if (!has_one_result(op)) continue;
    const std::optional<double> number = evaluate(op);
    if (number) known_[at(op.results[0])] = stored_as(type_of(graph, op.results[0]).dtype, *number);
  }
}

std::optional<double> UniformValues::evaluate(const Op& op) const {
  if (!op.name.starts_with("aten.")) return std::nullopt;
  for (const Fill& fill : kFills) {
    if (op.name != fill.name) continue;
    if (fill.argument == kNone) return fill.number;
    return number_argument(op, at(fill.argument));
  }
  if (!std::binary_search(
          kRearrangements.begin(), kRearrangements.end(), std::string_view(op.name)))
    return std::nullopt;
  return of(tensor_argument(op, 0));
}

std::optional<double> UniformValues::of(ValueId value) const {
  if (value == kNone || at(value) >= known_.size()) return std::nullopt;
  return known_[at(value)];
}

std::optional<double> UniformValues::of_argument(const Op& op, size_t i) const {
  const ValueId value = tensor_argument(op, i);
  return value == kNone ? number_argument(op, i) : of(value);
}

}  // namespace medley
