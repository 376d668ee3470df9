#include <algorithm>
#include <array>
#include <string_view>

#include "medley/base/at.h"
#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"
#include "medley/graph/uniform.h"

namespace medley {
namespace {

// Ops that return their first operand if the type stays equal.
constexpr std::array<std::string_view, 18> kCopies{"_reshape_alias",
                                                   "_to_copy",
                                                   "_unsafe_view",
                                                   "alias",
                                                   "clone",
                                                   "contiguous",
                                                   "copy",
                                                   "detach",
                                                   "expand",
                                                   "lift_fresh",
                                                   "lift_fresh_copy",
                                                   "repeat",
                                                   "reshape",
                                                   "slice",
                                                   "slice_backward",
                                                   "squeeze",
                                                   "to",
                                                   "view"};

using Permutation = std::vector<size_t>;  // dim i of the result is dim p[i] of the operand

std::optional<size_t> dim_argument(const Op& op, size_t i, size_t rank) {
  const std::optional<double> number = number_argument(op, i);
  const auto signed_rank = static_cast<double>(rank);
  if (!number || *number < -signed_rank || *number >= signed_rank) return std::nullopt;
  return static_cast<size_t>(*number < 0 ? *number + signed_rank : *number);
}

std::optional<Permutation> permutation(const Op& op, size_t rank) {
  Permutation dims(rank);
  for (size_t i = 0; i < rank; ++i) dims[i] = i;
  if (op.name == "aten.t.default" && rank <= 2) {
    std::reverse(dims.begin(), dims.end());
    return dims;
  }
  if (op.name == "aten.transpose.int") {
    const auto a = dim_argument(op, 1, rank), b = dim_argument(op, 2, rank);
    if (!a || !b) return std::nullopt;
    std::swap(dims[*a], dims[*b]);
    return dims;
  }
  if (op.name != "aten.permute.default" || op.arguments.size() != 2) return std::nullopt;
  const auto* order = std::get_if<std::vector<Size>>(&op.arguments[1]);
  if (!order || order->size() != rank) return std::nullopt;
  for (size_t i = 0; i < rank; ++i) {
    const auto limit = static_cast<int64_t>(rank);
    const int64_t dim = (*order)[i].coefficient;
    if (!(*order)[i].is_constant() || dim < -limit || dim >= limit) return std::nullopt;
    dims[i] = at(dim < 0 ? dim + limit : dim);
  }
  return dims;
}

bool is_identity(const Permutation& dims) {
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] != i) return false;
  return true;
}

ValueId undone_permutation(const Graph& graph, const Op& op, ValueId operand) {
  const size_t rank = type_of(graph, operand).shape.size();
  const auto second = permutation(op, rank);
  if (!second) return kNone;
  if (is_identity(*second)) return operand;
  const Op* before = producer_of(graph, operand);
  const ValueId root = before ? tensor_argument(*before, 0) : kNone;
  if (root == kNone || type_of(graph, root).shape.size() != rank) return kNone;
  const auto first = permutation(*before, rank);
  if (!first) return kNone;
  Permutation both(rank);
  for (size_t i = 0; i < rank; ++i) both[i] = (*first)[(*second)[i]];
  return is_identity(both) ? root : kNone;
}

ValueId undone_view(const Graph& graph, const Op& op, ValueId operand) {
  if (!is_view(op)) return kNone;
  const Op* before = producer_of(graph, operand);
  return before && is_view(*before) ? tensor_argument(*before, 0) : kNone;
}

// Returns x of x * 1, 1 * x, x / 1, x + 0 or 0 + x.
ValueId beside_neutral(const Op& op, const UniformValues& uniform) {
  const std::string_view name = short_name(op);
  if (op.name == "aten.add.Tensor" && op.arguments.size() == 3) {
    if (uniform.of_argument(op, 1) == 0.0) return tensor_argument(op, 0);
    if (uniform.of_argument(op, 0) == 0.0 && number_argument(op, 2) == 1.0)
      return tensor_argument(op, 1);
  }
  if ((name != "mul" && name != "div") || op.arguments.size() != 2) return kNone;
  if (uniform.of_argument(op, 1) == 1.0) return tensor_argument(op, 0);
  if (name == "mul" && uniform.of_argument(op, 0) == 1.0) return tensor_argument(op, 1);
  return kNone;
}

// Returns whether an op takes the first elements of a parameter or buffer, such as the positions of
// a batch's tokens. The longest batch takes all. The op and its gradient stay, so that shorter
// batches have the same ops.
bool takes_first_of_state(const Graph& graph, const Op& op, ValueId operand) {
  if (op.name != "aten.slice.Tensor" || !has_end(op)) return false;
  for (const Op* before = producer_of(graph, operand);
       before && before->name == "aten.slice.Tensor";
       before = producer_of(graph, operand))
    operand = tensor_argument(*before, 0);
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](const Input& input) {
    return (input.kind == InputKind::kBuffer || input.kind == InputKind::kParameter) &&
           input.value == operand;
  });
}

// Returns [value] whether it is a parameter's gradient or a term of one.
std::vector<bool> parts_of_gradients(const Graph& graph) {
  std::vector<bool> parts(graph.values.size(), false);
  for (const Output& output : graph.outputs)
    if (output.kind == OutputKind::kGradient) parts[at(output.value)] = true;
  for (auto op = graph.ops.rbegin(); op != graph.ops.rend(); ++op)
    if (has_one_result(*op) && parts[at(op->results[0])] &&
        (op->name == "aten.add.Tensor" || op->name == "aten.slice_backward.default"))
      for (ValueId operand : operands(*op))
        if (operand != kNone) parts[at(operand)] = true;
  return parts;
}

// Returns the value of the new graph that a translated op would repeat, or kNone.
ValueId repeated(const Graph& graph,
                 const Op& op,
                 const TensorType& result,
                 const UniformValues& uniform) {
  if (!op.name.starts_with("aten.") || op.results.size() != 1) return kNone;
  // copy(self, source): `self` is a destination without effect.
  const ValueId operand = tensor_argument(op, op.name == "aten.copy.default" ? 1 : 0);
  const auto same_type = [&](ValueId value) {
    return value != kNone && type_of(graph, value) == result;
  };
  if (const ValueId x = beside_neutral(op, uniform); same_type(x)) return x;
  if (operand == kNone || takes_first_of_state(graph, op, operand)) return kNone;
  if (std::binary_search(kCopies.begin(), kCopies.end(), short_name(op)) && same_type(operand))
    return operand;
  if (const ValueId root = undone_permutation(graph, op, operand); same_type(root)) return root;
  if (const ValueId root = undone_view(graph, op, operand); same_type(root)) return root;
  return kNone;
}

}  // namespace

Graph fold_identities(const Graph& graph) {
  Rewrite rewrite(graph);
  UniformValues uniform;
  const std::vector<bool> gradients = parts_of_gradients(graph);
  for (const Op& op : graph.ops) {
    Op translated = rewrite.translate(op);
    uniform.update(rewrite.to());
    const bool is_of_first =
        op.name == "aten.slice_backward.default" && has_end(op) && gradients[at(op.results[0])];
    const ValueId same =
        has_one_result(op) && !is_of_first
            ? repeated(rewrite.to(), translated, type_of(graph, op.results[0]), uniform)
            : kNone;
    if (same == kNone)
      rewrite.keep(std::move(translated));
    else
      rewrite.replace(op.results[0], same);
  }
  return rewrite.finish();
}

}  // namespace medley
