#include "medley/base/error.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

// Appends ops that replace one: same phase, module and source.
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

// Returns f32 for half precision, as in the kernels.
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

// Batch norm over [n, c, ...] with n split: means over n and the dims behind c. Statistics keep
// their dims: [1, c, 1, 1].
class BatchNorm {
 public:
  BatchNorm(Graph& graph, const Op& op, ValueId x)
      : out(graph, op),
        inside(compute_dtype(type_of(graph, x).dtype)),
        x_type(type_of(graph, x)),
        channels(x_type.shape.at(1)) {
    per_channel_.assign(x_type.shape.size(), Size(1));
    per_channel_[1] = channels;
    for (size_t d = 0; d < x_type.shape.size(); ++d)
      if (d != 1) reduced_.emplace_back(static_cast<int64_t>(d));
  }

  ValueId mean(ValueId x) { return reduce("aten.mean.dim", x, true); }
  ValueId sum(ValueId x) { return reduce("aten.sum.dim_IntList", x, false); }
  ValueId scale(ValueId x, double factor) {
    return out.add("aten.mul.Scalar", {ValueArgument{x}, factor}, out.type(x));
  }
  ValueId plus(ValueId x, Argument y) {
    return out.add("aten.add.Tensor", {ValueArgument{x}, std::move(y), Size(1)}, out.type(x));
  }
  ValueId plus(ValueId x, ValueId y) { return plus(x, ValueArgument{y}); }
  // Return [1, c, 1, 1] for [c] and vice versa, in the compute dtype or another.
  ValueId wide(ValueId x) { return view(out.cast(x, inside), per_channel_); }
  ValueId flat(ValueId x, DType dtype) { return out.cast(view(x, {channels}), dtype); }
  // Returns N / (N - 1), with N the elements of a channel over all devices.
  ValueId unbiased_factor() {
    Size behind(1);
    for (size_t d = 2; d < x_type.shape.size(); ++d) behind = behind * x_type.shape[d];
    const NoneArgument none;
    const std::vector<Size> rows = {x_type.shape[0]};
    const auto each = static_cast<double>(behind.coefficient);
    const ValueId ones =
        out.add("aten.full.default", {rows, each, inside, none, none, none}, {inside, rows});
    const ValueId count = out.add("aten.sum.default", {ValueArgument{ones}, none}, {inside, {}});
    return out.divide(count, plus(count, Argument(-1.0)));
  }

  Expansion out;
  DType inside;
  TensorType x_type;
  Size channels;

 private:
  ValueId reduce(std::string name, ValueId x, bool keeps) {
    return out.add(std::move(name),
                   {ValueArgument{x}, reduced_, keeps, NoneArgument{}},
                   {inside, keeps ? per_channel_ : std::vector<Size>{channels}});
  }
  ValueId view(ValueId x, const std::vector<Size>& shape) {
    return out.add("aten.view.default", {ValueArgument{x}, shape}, {out.type(x).dtype, shape});
  }

  std::vector<Size> per_channel_, reduced_;
};

ValueId operand_at(const Op& op, size_t argument) {
  const auto* value = std::get_if<ValueArgument>(&op.arguments.at(argument));
  return value ? value->value : kNone;
}

// (x, weight?, bias?, mean, var, training, momentum, eps) -> y, mean, rstd, running mean, running
// var
std::vector<ValueId> expand_batch_norm(Graph& graph, const Op& op) {
  const ValueId x_in = operand_at(op, 0);
  BatchNorm norm(graph, op, x_in);
  Expansion& out = norm.out;
  const ValueId x = out.cast(x_in, norm.inside);
  const ValueId mean = norm.mean(x);
  const ValueId centred = out.subtract(x, mean);
  const ValueId variance = norm.mean(out.multiply(centred, centred));
  const ValueId rstd =
      out.unary("aten.rsqrt.default", norm.plus(variance, Argument(number(op, 7).value())));
  ValueId y = out.multiply(centred, rstd);
  if (const ValueId weight = operand_at(op, 1); weight != kNone)
    y = out.multiply(y, norm.wide(weight));
  if (const ValueId bias = operand_at(op, 2); bias != kNone) y = norm.plus(y, norm.wide(bias));

  const double momentum = number(op, 6).value();
  const auto running = [&](ValueId before, ValueId now) {
    const ValueId kept = norm.scale(before, 1 - momentum);
    return norm.plus(kept, norm.scale(norm.flat(now, out.type(before).dtype), momentum));
  };
  const auto type = [&](size_t j) { return type_of(graph, op.results.at(j)).dtype; };
  const ValueId y_out = out.cast(y, type(0));
  const ValueId saved_mean = norm.flat(mean, type(1)), saved_rstd = norm.flat(rstd, type(2));
  const ValueId running_mean = running(operand_at(op, 3), mean);
  const ValueId unbiased = out.multiply(variance, norm.unbiased_factor());
  return {y_out, saved_mean, saved_rstd, running_mean, running(operand_at(op, 4), unbiased)};
}

// With z = (x - mean) rstd: dx = (g - mean(g) - z mean(g z)) rstd weight, dweight = sum(g z), dbias
// = sum(g)
std::vector<ValueId> expand_batch_norm_backward(Graph& graph, const Op& op) {
  const ValueId x_in = operand_at(op, 1);
  BatchNorm norm(graph, op, x_in);
  Expansion& out = norm.out;
  const ValueId g = out.cast(operand_at(op, 0), norm.inside);
  const ValueId rstd = norm.wide(operand_at(op, 6));
  const ValueId centred = out.subtract(out.cast(x_in, norm.inside), norm.wide(operand_at(op, 5)));
  const ValueId z = out.multiply(centred, rstd);
  const ValueId gz = out.multiply(g, z);
  std::vector<ValueId> results(3, kNone);
  if (op.results.at(0) != kNone) {
    ValueId dx = out.subtract(out.subtract(g, norm.mean(g)), out.multiply(z, norm.mean(gz)));
    dx = out.multiply(dx, rstd);
    if (const ValueId weight = operand_at(op, 2); weight != kNone)
      dx = out.multiply(dx, norm.wide(weight));
    results[0] = out.cast(dx, type_of(graph, op.results[0]).dtype);
  }
  if (op.results.at(1) != kNone)
    results[1] = out.cast(norm.sum(gz), type_of(graph, op.results[1]).dtype);
  if (op.results.at(2) != kNone)
    results[2] = out.cast(norm.sum(g), type_of(graph, op.results[2]).dtype);
  return results;
}

struct Row {
  std::string_view op;
  std::vector<ValueId> (*expand)(Graph&, const Op&);
};
constexpr Row kExpansions[] = {
    {"aten._softmax.default", expand_softmax},
    {"aten._log_softmax.default", expand_log_softmax},
    {"aten._native_batch_norm_legit_functional.default", expand_batch_norm},
    {"aten.native_batch_norm_backward.default", expand_batch_norm_backward},
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
  const Op copy = op;  // `op` may be in `graph`, which grows
  for (const Row& row : kExpansions)
    if (row.op == copy.name) return row.expand(graph, copy);
  throw Error(Blame::kUs, "no expansion: " + copy.name);
}

}  // namespace medley
