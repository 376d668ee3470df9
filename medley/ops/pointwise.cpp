#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// Makes an op linear only for some arguments: x + 0, x ** 1, masked_fill with 0.
std::optional<Instance> linear_if(bool linear,
                                  std::string_view groups,
                                  const Graph& graph,
                                  const Op& op) {
  return instantiate("..&, ..?, ..? -> ..", linear ? groups : "", graph, op);
}

std::optional<Instance> add(const Graph& graph, const Op& op) {
  const auto scalar = number(op, 1);  // add.Tensor(x, 1e-5) is x plus a number
  return linear_if(!scalar || *scalar == 0, "{0+1}", graph, op);
}

std::optional<Instance> power(const Graph& graph, const Op& op) {
  return linear_if(number(op, 1) == 1.0, "{0}", graph, op);
}

std::optional<Instance> masked_fill(const Graph& graph, const Op& op) {
  return linear_if(number(op, 2) == 0.0, "{0}", graph, op);
}

// where(condition, x, 0) passes partial sums of x; where(condition, x, y) those of both.
std::optional<Instance> where_scalar(const Graph& graph, const Op& op) {
  return linear_if(number(op, 2) == 0.0, "{1}", graph, op);
}

std::optional<Instance> to_copy(const Graph& graph, const Op& op) {
  const auto values = operands(op);
  if (values.size() != 1 || op.results.size() != 1) return std::nullopt;
  // A sum of counts may be rounded once; a sum of booleans is not the sum of its parts.
  const bool is_linear = type_of(graph, values[0]).dtype != DType::kBool &&
                         is_floating(type_of(graph, op.results[0]).dtype);
  return linear_if(is_linear, "{0}", graph, op);
}

// copy(self, source) without a broadcast: `self` gives a type only, and need not exist locally.
std::optional<Instance> copy(const Graph& graph, const Op& op) {
  const auto values = operands(op);
  if (values.size() != 2 || type_of(graph, values[0]).shape != type_of(graph, values[1]).shape)
    return std::nullopt;
  return instantiate("#.., .. -> ..", "{1}", graph, op);
}

void copy_local(Op& local, const LocalForm& form) {
  const ValueArgument source{operands(local).at(1)};
  local.name = "aten._to_copy.default";
  local.arguments = {source,
                     form.results.at(0).dtype,
                     NoneArgument{},
                     NoneArgument{},
                     NoneArgument{},
                     false,
                     NoneArgument{}};
}

// (grad, x, buffer): the buffer has the shape of x, or no elements on some devices.
std::optional<Instance> log_sigmoid_backward(const Graph& graph, const Op& op) {
  const auto values = operands(op);
  const bool whole =
      values.size() == 3 && type_of(graph, values[2]).shape == type_of(graph, values[1]).shape;
  return instantiate(whole ? ".., .., .. -> .." : ".., .., _ -> ..", "{0}", graph, op);
}

// The second result has the shape of x, or no elements on some devices.
std::optional<Instance> log_sigmoid(const Graph& graph, const Op& op) {
  const bool whole = op.results.size() == 2 && op.results[1] != kNone &&
                     type_of(graph, op.results[1]).shape == type_of(graph, op.results[0]).shape;
  return instantiate(whole ? ".. -> .., .." : ".. -> .., _", "", graph, op);
}

constexpr std::string_view kUnary = ".. -> ..";
constexpr std::string_view kBinary = ".., ..? -> ..";  // the second may be a number
constexpr std::string_view kTernary = ".., .., .. -> ..";

}  // namespace

std::vector<Rule> pointwise_rules() {
  return {
      {"aten.add.Tensor", "", "", nullptr, add},
      {"aten.add.Scalar", "", "", nullptr, add},
      {"aten.sub.Tensor", "", "", nullptr, add},
      {"aten.sub.Scalar", "", "", nullptr, add},
      {"aten.rsub.Scalar", "", "", nullptr, add},
      {"aten.mul.Tensor", kBinary, "{0}{1}"},
      {"aten.mul.Scalar", kUnary, "{0}"},
      {"aten.div.Tensor", kBinary, "{0}"},
      {"aten.div.Scalar", kUnary, "{0}"},
      {"aten.neg.default", kUnary, "{0}"},
      {"aten.clone.default", kUnary, "{0}"},
      {"aten.contiguous.default", kUnary, "{0}"},
      {"aten.lift_fresh_copy.default", kUnary, "{0}"},
      {"aten.detach.default", kUnary, "{0}", nullptr, nullptr, WorkClass::kView},
      {"aten.alias.default", kUnary, "{0}", nullptr, nullptr, WorkClass::kView},
      {"aten._to_copy.default", "", "", nullptr, to_copy},
      {"aten.copy.default", "", "", copy_local, copy},
      {"aten.pow.Tensor_Scalar", "", "", nullptr, power},
      {"aten.pow.Tensor_Tensor", kBinary, ""},
      {"aten.pow.Scalar", kUnary, ""},
      {"aten.masked_fill.Scalar", "", "", nullptr, masked_fill},
      {"aten.masked_fill.Tensor", ".., .., _ -> ..", ""},
      {"aten.where.self", kTernary, "{1+2}"},
      {"aten.where.ScalarOther", "", "", nullptr, where_scalar},
      {"aten.addcmul.default", kTernary, "{0+1}{0+2}"},
      {"aten.addcdiv.default", kTernary, "{0+1}"},
      {"aten.lerp.Scalar", kBinary, "{0+1}"},
      {"aten.lerp.Tensor", kTernary, "{0+1}"},
      {"aten.xlogy.Tensor", kBinary, "{0}"},
      {"aten.gelu_backward.default", kBinary, "{0}"},
      {"aten.silu_backward.default", kBinary, "{0}"},
      {"aten.tanh_backward.default", kBinary, "{0}"},
      {"aten.sigmoid_backward.default", kBinary, "{0}"},
      {"aten.threshold_backward.default", kBinary, "{0}"},
      {"aten.elu_backward.default", kBinary, "{0}"},
      {"aten.leaky_relu_backward.default", kBinary, "{0}"},
      {"aten.rrelu_with_noise_backward.default", kTernary, "{0}"},
      {"aten.native_dropout_backward.default", kBinary, "{0}"},
      {"aten.hardtanh_backward.default", kBinary, "{0}"},
      {"aten.hardswish_backward.default", kBinary, "{0}"},
      {"aten.hardsigmoid_backward.default", kBinary, "{0}"},
      {"aten.softplus_backward.default", kBinary, "{0}"},
      {"aten.mish_backward.default", kBinary, "{0}"},
      {"aten.logit_backward.default", kBinary, "{0}"},
      {"aten._prelu_kernel_backward.default", ".., .., .. -> .., ..", "{0}"},
      {"aten.log_sigmoid_backward.default", "", "", nullptr, log_sigmoid_backward},
      {"aten.log_sigmoid_forward.default", "", "", nullptr, log_sigmoid},
      {"aten.gelu.default", kUnary, ""},
      {"aten.silu.default", kUnary, ""},
      {"aten.tanh.default", kUnary, ""},
      {"aten.sigmoid.default", kUnary, ""},
      {"aten.relu.default", kUnary, ""},
      {"aten.elu.default", kUnary, ""},
      {"aten.leaky_relu.default", kUnary, ""},
      {"aten.hardtanh.default", kUnary, ""},
      {"aten.hardswish.default", kUnary, ""},
      {"aten.hardsigmoid.default", kUnary, ""},
      {"aten.softplus.default", kUnary, ""},
      {"aten.mish.default", kUnary, ""},
      {"aten.celu.default", kUnary, ""},
      {"aten.threshold.default", kUnary, ""},
      {"aten.logit.default", kUnary, ""},
      {"aten.sinc.default", kUnary, ""},
      {"aten.exp.default", kUnary, ""},
      {"aten.exp2.default", kUnary, ""},
      {"aten.expm1.default", kUnary, ""},
      {"aten.log.default", kUnary, ""},
      {"aten.log2.default", kUnary, ""},
      {"aten.log1p.default", kUnary, ""},
      {"aten.sqrt.default", kUnary, ""},
      {"aten.rsqrt.default", kUnary, ""},
      {"aten.reciprocal.default", kUnary, ""},
      {"aten.cos.default", kUnary, ""},
      {"aten.sin.default", kUnary, ""},
      {"aten.tan.default", kUnary, ""},
      {"aten.acos.default", kUnary, ""},
      {"aten.asin.default", kUnary, ""},
      {"aten.atan.default", kUnary, ""},
      {"aten.cosh.default", kUnary, ""},
      {"aten.sinh.default", kUnary, ""},
      {"aten.acosh.default", kUnary, ""},
      {"aten.asinh.default", kUnary, ""},
      {"aten.atanh.default", kUnary, ""},
      {"aten.erf.default", kUnary, ""},
      {"aten.erfc.default", kUnary, ""},
      {"aten.erfinv.default", kUnary, ""},
      {"aten.lgamma.default", kUnary, ""},
      {"aten.digamma.default", kUnary, ""},
      {"aten.frac.default", kUnary, ""},
      {"aten.abs.default", kUnary, ""},
      {"aten.sign.default", kUnary, ""},
      {"aten.sgn.default", kUnary, ""},
      {"aten.floor.default", kUnary, ""},
      {"aten.ceil.default", kUnary, ""},
      {"aten.round.default", kUnary, ""},
      {"aten.trunc.default", kUnary, ""},
      {"aten.isnan.default", kUnary, ""},
      {"aten.isinf.default", kUnary, ""},
      {"aten.logical_not.default", kUnary, ""},
      {"aten.bitwise_not.default", kUnary, ""},
      {"aten.clamp.default", kUnary, ""},
      {"aten.clamp_min.default", kUnary, ""},
      {"aten.clamp_max.default", kUnary, ""},
      {"aten.nan_to_num.default", kUnary, ""},
      {"aten.minimum.default", kBinary, ""},
      {"aten.maximum.default", kBinary, ""},
      {"aten.fmin.default", kBinary, ""},
      {"aten.fmax.default", kBinary, ""},
      {"aten.hypot.default", kBinary, ""},
      {"aten.logaddexp.default", kBinary, ""},
      {"aten.logaddexp2.default", kBinary, ""},
      {"aten._prelu_kernel.default", kBinary, ""},
      {"aten.logical_and.default", kBinary, ""},
      {"aten.logical_or.default", kBinary, ""},
      {"aten.logical_xor.default", kBinary, ""},
      {"aten.atan2.default", kBinary, ""},
      {"aten.clamp.Tensor", ".., ..?, ..? -> ..", ""},
      {"aten.clamp_min.Tensor", kBinary, ""},
      {"aten.clamp_max.Tensor", kBinary, ""},
      {"aten.bitwise_and.Tensor", kBinary, ""},
      {"aten.bitwise_and.Scalar", kUnary, ""},
      {"aten.bitwise_or.Tensor", kBinary, ""},
      {"aten.bitwise_or.Scalar", kUnary, ""},
      {"aten.bitwise_xor.Tensor", kBinary, ""},
      {"aten.bitwise_xor.Scalar", kUnary, ""},
      {"aten.eq.Tensor", kBinary, ""},
      {"aten.eq.Scalar", kUnary, ""},
      {"aten.ne.Tensor", kBinary, ""},
      {"aten.ne.Scalar", kUnary, ""},
      {"aten.ge.Tensor", kBinary, ""},
      {"aten.ge.Scalar", kUnary, ""},
      {"aten.gt.Tensor", kBinary, ""},
      {"aten.gt.Scalar", kUnary, ""},
      {"aten.le.Tensor", kBinary, ""},
      {"aten.le.Scalar", kUnary, ""},
      {"aten.lt.Tensor", kBinary, ""},
      {"aten.lt.Scalar", kUnary, ""},
      {"aten.remainder.Tensor", kBinary, ""},
      {"aten.remainder.Scalar", kUnary, ""},
      {"aten.fmod.Tensor", kBinary, ""},
      {"aten.fmod.Scalar", kUnary, ""},
      {"aten.floor_divide.default", kBinary, ""},
      {"aten.div.Tensor_mode", kBinary, ""},
      {"aten.div.Scalar_mode", kUnary, ""},
  };
}

}  // namespace medley
