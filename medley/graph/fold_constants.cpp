#include <optional>

#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"
#include "medley/graph/uniform.h"

namespace medley {
namespace {

enum class Arithmetic { kNone, kProduct, kQuotient };

Arithmetic arithmetic(const Op& op) {
  if (op.arguments.size() != 2 || !has_one_result(op)) return Arithmetic::kNone;
  if (op.name == "aten.mul.Tensor" || op.name == "aten.mul.Scalar") return Arithmetic::kProduct;
  if (op.name == "aten.div.Tensor" || op.name == "aten.div.Scalar") return Arithmetic::kQuotient;
  return Arithmetic::kNone;
}

// Returns whether arithmetic on doubles, rounded once, equals that of the dtype.
bool is_exact(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

// Returns a constant of the dtype and of shape [], or a number in the op.
std::optional<double> constant(
    const Graph& graph, const Op& op, size_t i, DType dtype, const UniformValues& uniform) {
  const ValueId value = tensor_argument(op, i);
  if (value == kNone) return number_argument(op, i);
  const TensorType& type = type_of(graph, value);
  if (type.dtype != dtype || !type.shape.empty()) return std::nullopt;
  return uniform.of(value);
}

// A float argument would turn an op on integers into one on floats.
std::optional<Argument> as_argument(double number, DType dtype) {
  if (is_floating(dtype)) return number;
  if (dtype == DType::kBool) return std::nullopt;
  return static_cast<int64_t>(number);
}

// Replaces where(condition, x, constant), which passes partial sums of x only for the number 0.
// Returns whether the op is one.
bool fold_choice(Rewrite& rewrite,
                 const Op& op,
                 const TensorType& result,
                 const UniformValues& uniform) {
  if (op.name != "aten.where.self" || op.arguments.size() != 3) return false;
  const ValueId x = tensor_argument(op, 1);
  const std::optional<double> number = uniform.of_argument(op, 2);
  if (x == kNone || type_of(rewrite.to(), x) != result || !number ||
      stored_as(result.dtype, *number) != number)
    return false;
  const std::optional<Argument> other = as_argument(*number, result.dtype);
  if (!other) return false;
  rewrite.replace(
      op.results[0],
      rewrite.emit(
          op, "aten.where.ScalarOther", {op.arguments[0], op.arguments[1], *other}, result));
  return true;
}

// Replaces a product or quotient with a constant; returns whether the op is one.
bool fold_arithmetic(Rewrite& rewrite,
                     const Op& op,
                     const TensorType& result,
                     const UniformValues& uniform) {
  const Arithmetic kind = arithmetic(op);
  if (kind == Arithmetic::kNone || !is_exact(result.dtype)) return false;
  const auto a = constant(rewrite.to(), op, 0, result.dtype, uniform);
  const auto b = constant(rewrite.to(), op, 1, result.dtype, uniform);
  if (a && b && result.shape.empty()) {
    const bool product = kind == Arithmetic::kProduct;
    const auto number = stored_as(result.dtype, product ? *a * *b : *a / *b);
    rewrite.replace(op.results[0], rewrite.emit_full(op, *number, result));
    return true;
  }
  if (kind == Arithmetic::kQuotient && !b) return false;
  const ValueId factor = tensor_argument(op, b ? 0 : 1);
  const ValueId number = tensor_argument(op, b ? 1 : 0);
  const auto value = b ? b : a;
  if (!value || factor == kNone || number == kNone || type_of(rewrite.to(), factor) != result)
    return false;
  const char* name = kind == Arithmetic::kProduct ? "aten.mul.Scalar" : "aten.div.Scalar";
  rewrite.replace(op.results[0], rewrite.emit(op, name, {ValueArgument{factor}, *value}, result));
  return true;
}

}  // namespace

Graph fold_constants(const Graph& graph) {
  Rewrite rewrite(graph);
  UniformValues uniform;
  for (const Op& op : graph.ops) {
    Op translated = rewrite.translate(op);
    uniform.update(rewrite.to());
    const auto folded = [&] {
      const TensorType& result = type_of(graph, op.results[0]);
      return fold_choice(rewrite, translated, result, uniform) ||
             fold_arithmetic(rewrite, translated, result, uniform);
    };
    if (!has_one_result(op) || !folded()) rewrite.keep(std::move(translated));
  }
  return rewrite.finish();
}

}  // namespace medley
