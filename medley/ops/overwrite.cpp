#include "medley/ops/overwrite.h"

#include <algorithm>
#include <map>

namespace medley {
namespace {

const std::map<std::string_view, Overwriting> kOverwriting{
    {"aten.add.Tensor", {"aten.add_.Tensor", false, true}},
    {"aten.sub.Tensor", {"aten.sub_.Tensor"}},
    {"aten.mul.Tensor", {"aten.mul_.Tensor", false, true}},
    {"aten.div.Tensor", {"aten.div_.Tensor"}},
    {"aten.mul.Scalar", {"aten.mul_.Scalar"}},
    {"aten.div.Scalar", {"aten.div_.Scalar"}},
    {"aten.masked_fill.Scalar", {"aten.masked_fill_.Scalar"}},
    {"aten.relu.default", {"aten.relu_.default"}},
    {"aten.neg.default", {"aten.neg_.default"}},
    {"aten.exp.default", {"aten.exp_.default"}},
    {"aten.tanh.default", {"aten.tanh_.default"}},
    {"aten.sigmoid.default", {"aten.sigmoid_.default"}},
    {"aten.gelu_backward.default", {"aten.gelu_backward.grad_input", true}},
    {"aten.silu_backward.default", {"aten.silu_backward.grad_input", true}},
    {"aten.threshold_backward.default", {"aten.threshold_backward.grad_input", true}},
    {"aten.tanh_backward.default", {"aten.tanh_backward.grad_input", true}},
    {"aten.sigmoid_backward.default", {"aten.sigmoid_backward.grad_input", true}},
    {"aten._log_softmax.default", {"aten._log_softmax.out", true, false, true}},
    {"aten._softmax.default", {"aten._softmax.out", true, false, true}},
    {"aten._log_softmax_backward_data.default",
     {"aten._log_softmax_backward_data.out", true, false, true}},
    {"aten._softmax_backward_data.default", {"aten._softmax_backward_data.out", true, false, true}},
    {"medley.cross_entropy_backward.default",
     {"medley.cross_entropy_backward.out", true, false, true}},
};

}  // namespace

std::optional<Overwriting> overwriting(std::string_view op) {
  const auto row = kOverwriting.find(op);
  return row == kOverwriting.end() ? std::nullopt : std::optional(row->second);
}

std::array<ValueId, 2> overwritable(const Graph& graph, const Op& op) {
  std::array<ValueId, 2> found{kNone, kNone};
  const auto how = overwriting(op.name);
  if (!how || op.results.size() != 1 || op.results[0] == kNone) return found;
  const std::vector<ValueId> values = operands(op);
  const auto fits = [&](size_t argument) {
    if (argument >= op.arguments.size()) return false;
    const auto* one = std::get_if<ValueArgument>(&op.arguments[argument]);
    return one && one->value != kNone && std::ranges::count(values, one->value) == 1 &&
           type_of(graph, one->value) == type_of(graph, op.results[0]);
  };
  size_t next = 0;
  for (size_t argument = 0; argument < (how->commutes && is_unscaled(op) ? 2u : 1u); ++argument)
    if (fits(argument)) found[next++] = std::get<ValueArgument>(op.arguments[argument]).value;
  return found;
}

bool is_unscaled(const Op& op) {
  if (op.arguments.size() < 3) return true;
  if (auto* size = std::get_if<Size>(&op.arguments[2])) return *size == Size(1);
  if (auto* number = std::get_if<double>(&op.arguments[2])) return *number == 1.0;
  return false;
}

}  // namespace medley
