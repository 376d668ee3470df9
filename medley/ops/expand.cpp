#include "medley/base/error.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

// Appends ops in the place of one: same phase, module and source.
class Expansion {
 public:
  Expansion(Graph& graph, const Op& op) : graph_(graph), op_(op) {}

  ValueId add(std::string name, std::vector<Argument> arguments, TensorType type) {
    Op op;
    op.name = std::move(name);
    op.arguments = std::move(arguments);
    op.phase = op_.phase;
    op.module = op_.module;
    op.source = op_.source;
    return add_op(graph_, std::move(op), {std::move(type)}).at(0);
  }
  ValueId unary(std::string name, ValueId x) {
    return add(std::move(name), {ValueArgument{x}}, type(x));
  }
  ValueId multiply(ValueId x, ValueId y) {
    return add("aten.mul.Tensor", {ValueArgument{x}, ValueArgument{y}}, type(x));
  }
  ValueId divide(ValueId x, ValueId y) {
    return add("aten.div.Tensor", {ValueArgument{x}, ValueArgument{y}}, type(x));
  }
  ValueId subtract(ValueId x, ValueId y) {
    return add("aten.sub.Tensor", {ValueArgument{x}, ValueArgument{y}, Size(1)}, type(x));
  }
  ValueId sum(ValueId x, size_t dim) {
    return add("aten.sum.dim_IntList",
               {ValueArgument{x}, list(dim), true, NoneArgument{}},
               reduced(x, dim));
  }
  ValueId max(ValueId x, size_t dim) {
    return add("aten.amax.default", {ValueArgument{x}, list(dim), true}, reduced(x, dim));
  }
  ValueId cast(ValueId x, DType dtype) {
    TensorType to = type(x);
    if (to.dtype == dtype) return x;
    to.dtype = dtype;
    const NoneArgument none;
    return add(
        "aten._to_copy.default", {ValueArgument{x}, dtype, none, none, none, false, none}, to);
  }
  const TensorType& type(ValueId x) const { return type_of(graph_, x); }

 private:
  static std::vector<Size> list(size_t dim) { return {Size(static_cast<int64_t>(dim))}; }
  TensorType reduced(ValueId x, size_t dim) const {
    TensorType one = type(x);
    one.shape.at(dim) = Size(1);
    return one;
  }

  Graph& graph_;
  const Op& op_;
};

// As the kernels do, half precision is computed in f32.
DType compute_dtype(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

// exp(x - max) / sum(exp(x - max)); its logarithm: x - max - log(sum(exp(x - max)))
std::vector<ValueId> softmax(Graph& graph, const Op& op, bool logarithm) {
  Expansion out(graph, op);
  const DType to = type_of(graph, op.results.at(0)).dtype;
  const ValueId x = out.cast(operands(op).at(0), compute_dtype(to));
  const size_t d = dim(op, 1, out.type(x).shape.size()).value();
  const ValueId shifted = out.subtract(x, out.max(x, d));
  const ValueId exp = out.unary("aten.exp.default", shifted);
  const ValueId total = out.sum(exp, d);
  const ValueId result = logarithm ? out.subtract(shifted, out.unary("aten.log.default", total))
                                   : out.divide(exp, total);
  return {out.cast(result, to)};
}

// softmax: (g - sum(g * y)) * y; logarithm: g - exp(y) * sum(g). y is the result of the forward op.
std::vector<ValueId> softmax_backward(Graph& graph, const Op& op, bool logarithm) {
  Expansion out(graph, op);
  const DType to = type_of(graph, op.results.at(0)).dtype;
  const DType inside = compute_dtype(to);
  const ValueId g = out.cast(operands(op).at(0), inside);
  const ValueId y = out.cast(operands(op).at(1), inside);
  const size_t d = dim(op, 2, out.type(g).shape.size()).value();
  const ValueId result =
      logarithm ? out.subtract(g, out.multiply(out.unary("aten.exp.default", y), out.sum(g, d)))
                : out.multiply(out.subtract(g, out.sum(out.multiply(g, y), d)), y);
  return {out.cast(result, to)};
}

std::vector<ValueId> expand_softmax(Graph& graph, const Op& op) {
  return softmax(graph, op, false);
}
std::vector<ValueId> expand_log_softmax(Graph& graph, const Op& op) {
  return softmax(graph, op, true);
}
std::vector<ValueId> expand_softmax_backward(Graph& graph, const Op& op) {
  return softmax_backward(graph, op, false);
}
std::vector<ValueId> expand_log_softmax_backward(Graph& graph, const Op& op) {
  return softmax_backward(graph, op, true);
}

struct Row {
  std::string_view op;
  std::vector<ValueId> (*expand)(Graph&, const Op&);
};
constexpr Row kExpansions[] = {
    {"aten._softmax.default", expand_softmax},
    {"aten._log_softmax.default", expand_log_softmax},
    {"aten._softmax_backward_data.default", expand_softmax_backward},
    {"aten._log_softmax_backward_data.default", expand_log_softmax_backward},
};

}  // namespace

bool has_expansion(std::string_view op) {
  for (const Row& row : kExpansions)
    if (row.op == op) return true;
  return false;
}

std::vector<ValueId> expand(Graph& graph, const Op& op) {
  const Op copy = op;  // `op` may lie in `graph`, which grows
  for (const Row& row : kExpansions)
    if (row.op == copy.name) return row.expand(graph, copy);
  throw Error(Blame::kUs, "no expansion: " + copy.name);
}

}  // namespace medley
