#include "medley/executor/empty_operands.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "medley/base/at.h"

namespace medley {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Ops whose operand gives only the shape, or whose kernel accepts empty operands.
const std::set<std::string_view> kSafe{"new_zeros",
                                       "new_ones",
                                       "new_full",
                                       "new_empty",
                                       "zeros_like",
                                       "ones_like",
                                       "full_like",
                                       "addmm",
                                       "_native_batch_norm_legit_functional"};
const std::set<std::string_view> kWritesInto{"index_put",
                                             "slice_scatter",
                                             "select_scatter",
                                             "scatter",
                                             "scatter_add",
                                             "index_add",
                                             "masked_scatter"};
struct Neutral {
  std::string_view op;
  double value;
};
constexpr Neutral kNeutral[]{{"amax", -kInfinity},
                             {"max", -kInfinity},
                             {"amin", kInfinity},
                             {"min", kInfinity},
                             {"logsumexp", -kInfinity},
                             {"prod", 1},
                             {"all", 1}};

double pad_value(const Op& op) {
  if (op.arguments.size() < 3) return 0;
  if (auto* value = std::get_if<double>(&op.arguments[2])) return *value;
  if (auto* value = std::get_if<Size>(&op.arguments[2]))
    return static_cast<double>(value->coefficient);
  return 0;
}

}  // namespace

bool is_empty(const Graph& graph, ValueId value, const std::vector<int64_t>& symbols) {
  const auto& shape = graph.values[at(value)].type.shape;
  return std::any_of(
      shape.begin(), shape.end(), [&](const Size& size) { return evaluate(size, symbols) == 0; });
}

namespace {

// Returns whether a shard is empty. A whole tensor without elements, such as an evaluating batch
// norm's saved statistics, is valid for the kernel.
bool is_empty_shard(const Graph& graph, ValueId value, const std::vector<int64_t>& symbols) {
  const auto& shape = graph.values[at(value)].type.shape;
  return std::any_of(shape.begin(), shape.end(), [&](const Size& size) {
    return !size.is_constant() && evaluate(size, symbols) == 0;
  });
}

}  // namespace

EmptyRule empty_rule(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols) {
  const auto empty = [&](ValueId value) {
    return value != kNone && is_empty(graph, value, symbols);
  };
  const std::vector<ValueId> values = operands(op);
  const bool empty_operand = std::any_of(values.begin(), values.end(), [&](ValueId value) {
    return value != kNone && is_empty_shard(graph, value, symbols);
  });
  const bool empty_result = std::any_of(op.results.begin(), op.results.end(), empty);
  if (!empty_operand && !empty_result) return CallKernel{};
  const bool all_empty = std::all_of(op.results.begin(), op.results.end(), [&](ValueId value) {
    return value == kNone || empty(value);
  });
  if (all_empty) return FillWith{};
  if (!empty_operand || op.name.starts_with("medley.")) return CallKernel{};

  const std::string_view name = short_name(op);
  if (kSafe.contains(name)) return CallKernel{};
  if (name == "cat") return DropEmpty{};
  if (kWritesInto.contains(name)) return FirstOperand{};
  if (name == "convolution" && values.size() == 3 && values[2] != kNone && !empty(values[2]))
    return AddBias{};
  if (name == "convolution_backward") return SumGradient{};
  if (name == "constant_pad_nd") return FillWith{pad_value(op)};
  for (const Neutral& row : kNeutral)
    if (row.op == name) return FillWith{row.value};
  return FillWith{};
}

}  // namespace medley
