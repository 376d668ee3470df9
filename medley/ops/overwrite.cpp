#include "medley/ops/overwrite.h"

#include <algorithm>
#include <map>

#include "medley/base/at.h"

namespace medley {
namespace {

constexpr Overwriting kPointwise{}, kEither{true, false}, kContiguous{false, true};

const std::map<std::string_view, Overwriting> kOverwriting{
    {"aten.add.Tensor", kEither},
    {"aten.sub.Tensor", kPointwise},
    {"aten.mul.Tensor", kEither},
    {"aten.div.Tensor", kPointwise},
    {"aten.mul.Scalar", kPointwise},
    {"aten.div.Scalar", kPointwise},
    {"aten.masked_fill.Scalar", kPointwise},
    {"aten.relu.default", kPointwise},
    {"aten.neg.default", kPointwise},
    {"aten.exp.default", kPointwise},
    {"aten.tanh.default", kPointwise},
    {"aten.sigmoid.default", kPointwise},
    {"aten.gelu_backward.default", kPointwise},
    {"aten.silu_backward.default", kPointwise},
    {"aten.threshold_backward.default", kPointwise},
    {"aten.tanh_backward.default", kPointwise},
    {"aten.sigmoid_backward.default", kPointwise},
    {"aten._log_softmax.default", kContiguous},
    {"aten._softmax.default", kContiguous},
    {"aten._log_softmax_backward_data.default", kContiguous},
    {"aten._softmax_backward_data.default", kContiguous},
};

bool is_one(const Argument& argument) {
  if (auto* size = std::get_if<Size>(&argument)) return *size == Size(1);
  if (auto* number = std::get_if<double>(&argument)) return *number == 1.0;
  return false;
}

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
  const bool is_scaled = op.arguments.size() > 2 && !is_one(op.arguments[2]);
  size_t next = 0;
  for (size_t argument = 0; argument < (how->commutes && !is_scaled ? 2u : 1u); ++argument)
    if (fits(argument)) found[next++] = std::get<ValueArgument>(op.arguments[argument]).value;
  return found;
}

}  // namespace medley
