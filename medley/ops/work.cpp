#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "medley/base/error.h"
#include "medley/ops/instance.h"
#include "medley/ops/rule.h"
#include "medley/ops/update_ops.h"

namespace medley {
namespace {

using Types = std::vector<TensorType>;

double elements(const TensorType& type, const std::vector<int64_t>& symbols) {
  double product = 1;
  for (const Size& size : type.shape) product *= static_cast<double>(evaluate(size, symbols));
  return product;
}

double extent(const TensorType& type, size_t dim, const std::vector<int64_t>& symbols) {
  return static_cast<double>(evaluate(type.shape.at(dim), symbols));
}

// Returns 2 m n k: the contracted dim is the last one of the left factor.
double matmul_flops(const Op& op,
                    const Types& operands,
                    const Types& results,
                    const std::vector<int64_t>& symbols) {
  const std::string_view name = short_name(op);
  if (name.starts_with("experts")) {
    // Rows times chosen experts, each through both weights; backward also recomputes the first. A
    // shard of the experts has a proportional part, assuming even routing.
    const bool backward = name == "experts_backward";
    const size_t first = backward ? 1 : 0;
    const double rows = elements(operands.at(first + 1), symbols);
    const double experts = number(op, first + 7).value_or(0);
    if (experts <= 0) return 0;
    const double up = elements(operands.at(first + 3), symbols) / experts;
    const double down = elements(operands.at(first + 4), symbols) / experts;
    return backward ? 2 * rows * (3 * up + 2 * down) : 2 * rows * (up + down);
  }
  if (name.starts_with("whole")) return number(op, op.arguments.size() - 2).value_or(0);
  if (name == "muon") {
    // Each iteration has three matmuls: x x^T, its square, and that times x, with x wide.
    const TensorType& x = operands.at(0);
    const double n = extent(x, x.shape.size() - 2, symbols),
                 m = extent(x, x.shape.size() - 1, symbols);
    const double small = std::min(n, m), large = std::max(n, m);
    return number(op, op.arguments.size() - 3).value_or(0) * 2 * small * small *
           (2 * large + small);
  }
  const TensorType& left = operands.at(name == "addmm" || name == "baddbmm" ? 1 : 0);
  return 2 * elements(results.at(0), symbols) * extent(left, left.shape.size() - 1, symbols);
}

// Returns 2 b h s t (d + e), half of it under a causal mask; backward: five matmuls instead of two.
double attention_flops(const Op& op, const Types& operands, const std::vector<int64_t>& symbols) {
  const bool backward = short_name(op) == "attention_backward";
  const size_t q = backward ? 1 : 0;
  const double scores = elements(operands.at(q), symbols) * extent(operands.at(q + 1), 2, symbols);
  const double width = extent(operands.at(q), 3, symbols);
  const double per_score =
      width == 0 ? 0 : 2 * (1 + extent(operands.at(q + 2), 3, symbols) / width);
  return scores * per_score * (flag(op, backward ? 7 : 4) ? 0.5 : 1) * (backward ? 2.5 : 1);
}

double convolution_flops(const Op& op,
                         const Types& operands,
                         const Types& results,
                         const std::vector<int64_t>& symbols) {
  const bool backward = short_name(op) == "convolution_backward";
  const bool transposed = flag(op, backward ? 7 : 6);
  const TensorType& x = operands.at(backward ? 1 : 0);
  const TensorType& w = operands.at(backward ? 2 : 1);
  const TensorType& y = backward ? operands.at(0) : results.at(0);
  const double rows = extent(w, 0, symbols);
  if (rows == 0) return 0;
  const double once = 2 * elements(transposed ? x : y, symbols) * elements(w, symbols) / rows;
  if (!backward) return once;
  return once * ((op.results.at(0) != kNone ? 1 : 0) + (op.results.at(1) != kNone ? 1 : 0));
}

// Returns whether an op touches only the rows that it returns, not the whole table.
bool reads_rows(std::string_view name) {
  return name == "aten.embedding.default" || name == "aten.index.Tensor" ||
         name == "aten.gather.default" || name == "aten.index_select.default" ||
         name == "medley.embedding_select.default" || name == "medley.cross_entropy.default";
}

// Returns how often a kernel reads and writes all logits in f32, by blocks of rows, in addition to
// its operands: measured on a GPU (benchmarks/results/gpu_202611.md).
double passes_over_logits(std::string_view name) {
  if (name == "medley.log_sum_exp.default") return 5;
  return name == "medley.cross_entropy_backward.default" ? 6 : 0;
}

double flops(WorkClass kind,
             const Op& op,
             const Types& operands,
             const Types& results,
             const std::vector<int64_t>& symbols) {
  switch (kind) {
    case WorkClass::kMatmul:
      return matmul_flops(op, operands, results, symbols);
    case WorkClass::kAttention:
      return attention_flops(op, operands, symbols);
    case WorkClass::kConvolution:
      return convolution_flops(op, operands, results, symbols);
    case WorkClass::kMemory:
    case WorkClass::kView:
      break;
  }
  return 0;
}

}  // namespace

Work work(const Op& op,
          const Types& operands,
          const Types& results,
          const std::vector<int64_t>& symbols) {
  const WorkClass kind = work_class(op.name);
  Work total;
  if (kind == WorkClass::kView) return total;
  const auto bytes = [&](const TensorType& type) {
    return static_cast<double>(num_bytes(type, symbols));
  };
  for (size_t i = 0; i < results.size(); ++i)
    if (i >= op.results.size() || op.results[i] != kNone)
      total.bytes += bytes(results[i]) * (reads_rows(op.name) ? 2 : 1);
  const std::vector<ValueId> present = medley::operands(op);
  for (size_t i = reads_rows(op.name) ? 1 : 0; i < operands.size(); ++i)
    if (i >= present.size() || present[i] != kNone) total.bytes += bytes(operands[i]);
  if (const double passes = passes_over_logits(op.name); passes > 0 && !operands.empty())
    total.bytes += passes * 4 * elements(operands[0], symbols);
  try {
    total.flops = flops(kind, op, operands, results, symbols);
  } catch (const std::out_of_range&) {
    throw Error(Blame::kCaller,
                fmt::format("graph: {}: found too few operands, or one of too few dims, expected "
                            "those of the op",
                            op.name));
  }
  return total;
}

ValueId storage_operand(const Op& op, size_t result) {
  const std::vector<ValueId> values = operands(op);
  if (values.empty()) return kNone;
  if (work_class(op.name) == WorkClass::kView || accumulates(op)) return values[0];
  if (!find_update_op(op.name)) return kNone;
  // The gradient and absent states have no result.
  const auto* value = std::get_if<ValueArgument>(&op.arguments.at(result == 0 ? 0 : result + 1));
  return value ? value->value : kNone;
}

}  // namespace medley
