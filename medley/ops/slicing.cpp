// Ops that take a part of a dim, or concatenate parts.

#include <algorithm>

#include "medley/graph/rewrite.h"
#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

const std::vector<std::vector<int>> kLinearInFirst = {{0}};

// Makes equal dims one label in all operands of full rank and the result. Locks any other dim, and
// `locked`, in each of them.
std::optional<Instance> map_equal_dims(const Graph& graph,
                                       const Op& op,
                                       std::vector<std::vector<int>> linear,
                                       std::optional<size_t> locked = std::nullopt) {
  InstanceBuilder builder(graph, op);
  const auto& to = builder.result();
  for (size_t i = 0; i < builder.num_operands(); ++i)
    if (builder.operand(i).size() != to.size()) return std::nullopt;
  for (size_t d = 0; d < to.size(); ++d) {
    bool equal = d != locked;
    for (size_t i = 0; i < builder.num_operands(); ++i) equal &= builder.operand(i)[d] == to[d];
    if (!equal) continue;
    const int label = builder.label(to[d]);
    for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, d, label);
    builder.label_result(0, d, label);
  }
  return builder.finish(std::move(linear));
}

// Maps equal dims. Locks the dim that argument number `argument` names if the slice has an end.
std::optional<Instance> slice_along(const Graph& graph, const Op& op, size_t argument) {
  // A slice with a fixed end that takes all elements takes only a part of shorter batches.
  const auto d = dim(op, argument, type_of(graph, op.results[0]).shape.size());
  return map_equal_dims(graph, op, kLinearInFirst, has_end(op) ? d : std::nullopt);
}

std::optional<Instance> slice(const Graph& graph, const Op& op) {
  return slice_along(graph, op, 1);
}

std::optional<Instance> slice_backward(const Graph& graph, const Op& op) {
  return slice_along(graph, op, 2);
}

std::optional<Instance> slice_scatter(const Graph& graph, const Op& op) {
  return map_equal_dims(graph, op, {{0, 1}});
}

std::optional<Instance> pad(const Graph& graph, const Op& op) {
  const bool zero = is_none(op, 2) || number(op, 2) == 0.0;
  return map_equal_dims(graph, op, zero ? kLinearInFirst : std::vector<std::vector<int>>());
}

// Keeps a slice of everything whole on a shard, whose size differs from the literal end. `part`:
// the operand or result that the slice makes or fills; argument `start` precedes the end.
void slice_local(Op& local, const LocalForm& form, size_t dim_argument, const TensorType& part) {
  const auto& whole = whole_result(form, 0).shape;
  const auto d = dim(local, dim_argument, whole.size());
  if (!d || part.shape.at(*d) != whole_operand(form, 0).shape.at(*d) || part.shape[*d] != whole[*d])
    return;
  local.arguments.at(dim_argument + 1) = Size(0);
  local.arguments.at(dim_argument + 2) = form.results.at(0).shape[*d];
}

void slice_forward_local(Op& local, const LocalForm& form) {
  slice_local(local, form, 1, whole_result(form, 0));
}
void slice_backward_local(Op& local, const LocalForm& form) {
  slice_local(local, form, 2, whole_operand(form, 0));
  local.arguments.at(1) = form.results.at(0).shape;
}
void slice_scatter_local(Op& local, const LocalForm& form) {
  slice_local(local, form, 2, whole_operand(form, 1));
}

// One dim of the longer side is absent on the other: select, unbind, and their backwards.
std::optional<Instance> select_dim(const Graph& graph,
                                   const Op& op,
                                   size_t argument,
                                   bool backward) {
  InstanceBuilder builder(graph, op);
  const size_t rank = backward ? builder.result().size() : builder.operand(0).size();
  const auto gone = dim(op, argument, rank);
  if (!gone) return std::nullopt;
  for (size_t d = 0, kept = 0; d < rank; ++d) {
    if (d == *gone) continue;
    const int label = builder.label(backward ? builder.result()[d] : builder.operand(0)[d]);
    builder.label_operand(0, backward ? kept : d, label);
    for (size_t j = 0; j < op.results.size(); ++j)
      if (op.results[j] != kNone) builder.label_result(j, backward ? d : kept, label);
    ++kept;
  }
  return builder.finish(kLinearInFirst);
}

std::optional<Instance> select(const Graph& graph, const Op& op) {
  return select_dim(graph, op, 1, false);
}
std::optional<Instance> select_backward(const Graph& graph, const Op& op) {
  return select_dim(graph, op, 2, true);
}

std::optional<Instance> select_scatter(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto gone = dim(op, 2, builder.result().size());
  if (!gone || builder.num_operands() != 2) return std::nullopt;
  for (size_t d = 0, kept = 0; d < builder.result().size(); ++d) {
    if (d == *gone) continue;
    const int label = builder.label(builder.result()[d]);
    builder.label_operand(0, d, label);
    builder.label_operand(1, kept++, label);
    builder.label_result(0, d, label);
  }
  return builder.finish({{0, 1}});
}

// Labels a dim that is cut into pieces, or made of them: (k! s) and s if they are equal, else
// locked.
template <typename Pieces>
void label_pieces(InstanceBuilder& builder, size_t d, const Pieces& pieces, bool backward) {
  const Size first = backward ? builder.operand(pieces[0])[d] : builder.result(pieces[0])[d];
  for (size_t i : pieces)
    if ((backward ? builder.operand(i) : builder.result(i))[d] != first) return;
  const int count = builder.label(Size(static_cast<int64_t>(pieces.size())), true);
  const int label = builder.label(first);
  for (int part : {count, label})
    backward ? builder.label_result(0, d, part) : builder.label_operand(0, d, part);
  for (size_t i : pieces)
    backward ? builder.label_operand(i, d, label) : builder.label_result(i, d, label);
}

std::optional<Instance> split(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto& from = builder.operand(0);
  const auto cut = is_none(op, 2) ? std::optional<size_t>(0) : dim(op, 2, from.size());
  if (!cut) return std::nullopt;
  std::vector<size_t> pieces;
  for (size_t j = 0; j < op.results.size(); ++j)
    if (op.results[j] != kNone) pieces.push_back(j);
  if (pieces.empty()) return std::nullopt;
  for (size_t d = 0; d < from.size(); ++d) {
    if (d == *cut) {
      if (pieces.size() == op.results.size()) label_pieces(builder, d, pieces, false);
      continue;
    }
    const int label = builder.label(from[d]);
    builder.label_operand(0, d, label);
    for (size_t j : pieces) builder.label_result(j, d, label);
  }
  return builder.finish(kLinearInFirst);
}

void split_local(Op& local, const LocalForm& form) {
  const size_t d = dim(local, 2, form.operands.at(0).shape.size()).value_or(0);
  if (!std::holds_alternative<std::vector<Size>>(local.arguments.at(1))) {
    local.arguments[1] = form.results.at(0).shape.at(d);
    return;
  }
  std::vector<Size> sizes;
  for (const TensorType& piece : form.results) sizes.push_back(piece.shape.at(d));
  local.arguments[1] = sizes;
}

std::optional<Instance> unbind(const Graph& graph, const Op& op) {
  return select_dim(graph, op, 1, false);
}

// Operands of shape [0], as in a key-value cache, carry no labels.
std::optional<Instance> cat(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto& to = builder.result();
  const auto joined = is_none(op, 1) ? std::optional<size_t>(0) : dim(op, 1, to.size());
  if (!joined) return std::nullopt;
  std::vector<size_t> pieces;
  std::vector<int> all;
  for (size_t i = 0; i < builder.num_operands(); ++i) {
    all.push_back(static_cast<int>(i));
    if (builder.operand(i) != std::vector<Size>{Size(0)}) pieces.push_back(i);
  }
  if (pieces.empty()) return std::nullopt;
  for (size_t d = 0; d < to.size(); ++d) {
    if (d == *joined) {
      label_pieces(builder, d, pieces, true);
      continue;
    }
    const int label = builder.label(to[d]);
    for (size_t i : pieces) builder.label_operand(i, d, label);
    builder.label_result(0, d, label);
  }
  return builder.finish({all});
}

std::optional<Instance> stack(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto& to = builder.result();
  const auto added = is_none(op, 1) ? std::optional<size_t>(0) : dim(op, 1, to.size());
  if (!added) return std::nullopt;
  for (size_t d = 0, kept = 0; d < to.size(); ++d) {
    if (d == *added) continue;
    const int label = builder.label(to[d]);
    for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, kept, label);
    builder.label_result(0, d, label);
    ++kept;
  }
  std::vector<int> all(builder.num_operands());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return builder.finish({all});
}

// Locks dims within which elements move. The others map.
std::optional<Instance> dims_locked(const Graph& graph, const Op& op, size_t argument) {
  InstanceBuilder builder(graph, op);
  const size_t rank = builder.operand(0).size();
  const auto moved = dims(op, argument, rank);
  if (!moved || builder.result().size() != rank) return std::nullopt;
  for (size_t d = 0; d < rank; ++d)
    if (!std::ranges::binary_search(*moved, d)) builder.map(0, d, 0, d);
  return builder.finish(kLinearInFirst);
}

std::optional<Instance> flip(const Graph& graph, const Op& op) { return dims_locked(graph, op, 1); }
std::optional<Instance> roll(const Graph& graph, const Op& op) { return dims_locked(graph, op, 2); }

std::optional<Instance> rot90(const Graph& graph, const Op& op) {
  return dims_locked(graph, op, 2);
}

// glu(x, dim), glu_backward(grad, x, dim), unfold(x, dim, size, step), unfold_backward(grad, sizes,
// dim, size, step): the dim is locked; the others map at the same index.
std::optional<Instance> dim_locked(const Graph& graph, const Op& op, size_t argument) {
  InstanceBuilder builder(graph, op);
  const size_t rank = std::min(builder.operand(0).size(), builder.result().size());
  const auto along = dim(op, argument, rank);
  if (!along) return std::nullopt;
  for (size_t d = 0; d < rank; ++d) {
    if (d == *along) continue;
    const int label = builder.label(builder.operand(0)[d]);
    for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, d, label);
    builder.label_result(0, d, label);
  }
  return builder.finish(op.name == "aten.glu.default" ? std::vector<std::vector<int>>{}
                                                      : kLinearInFirst);
}

std::optional<Instance> glu(const Graph& graph, const Op& op) { return dim_locked(graph, op, 1); }
std::optional<Instance> glu_backward(const Graph& graph, const Op& op) {
  return dim_locked(graph, op, 2);
}

// Two dims of the matrices, named by `argument` and the next one, become one behind all others:
// diagonal and its backward, diag_embed, diagonal_scatter. All three are locked.
std::optional<Instance> diagonal(const Graph& graph, const Op& op, size_t argument, bool embeds) {
  InstanceBuilder builder(graph, op);
  const size_t rank = embeds ? builder.result().size() : builder.operand(0).size();
  const auto one = dim(op, argument, rank), other = dim(op, argument + 1, rank);
  if (!one || !other) return std::nullopt;
  const bool scatters = builder.num_operands() == 2;
  for (size_t d = 0, kept = 0; d < rank; ++d) {
    if (d == *one || d == *other) continue;
    const int label = builder.label(embeds ? builder.result()[d] : builder.operand(0)[d]);
    builder.label_operand(0, embeds ? kept : d, label);
    if (scatters) builder.label_operand(1, kept, label);
    builder.label_result(0, embeds || scatters ? d : kept, label);
    ++kept;
  }
  return builder.finish(scatters ? std::vector<std::vector<int>>{{0, 1}} : kLinearInFirst);
}

std::optional<Instance> diagonal_2(const Graph& graph, const Op& op) {
  return diagonal(graph, op, 2, false);
}
std::optional<Instance> diagonal_backward(const Graph& graph, const Op& op) {
  return diagonal(graph, op, 3, true);
}
std::optional<Instance> diag_embed(const Graph& graph, const Op& op) {
  return diagonal(graph, op, 2, true);
}
std::optional<Instance> diagonal_scatter(const Graph& graph, const Op& op) {
  return diagonal(graph, op, 3, false);
}

}  // namespace

std::vector<Rule> slicing_rules() {
  constexpr WorkClass kView = WorkClass::kView;
  return {
      {"aten.slice.Tensor", "", "", slice_forward_local, slice, kView},
      {"aten.slice_backward.default", "", "", slice_backward_local, slice_backward},
      {"aten.slice_scatter.default", "", "", slice_scatter_local, slice_scatter},
      {"aten.constant_pad_nd.default", "", "", nullptr, pad},
      {"aten.select.int", "", "", nullptr, select, kView},
      {"aten.select_backward.default", "", "", result_shape<1>, select_backward},
      {"aten.select_scatter.default", "", "", nullptr, select_scatter},
      {"aten.split.Tensor", "", "", split_local, split, kView},
      {"aten.split_with_sizes.default", "", "", split_local, split, kView},
      {"aten.unsafe_split.Tensor", "", "", split_local, split, kView},
      {"aten.unsafe_split_with_sizes.default", "", "", split_local, split, kView},
      {"aten.unbind.int", "", "", nullptr, unbind, kView},
      {"aten.cat.default", "", "", nullptr, cat},
      {"aten.stack.default", "", "", nullptr, stack},
      {"aten.tril.default", ".. h! w! -> .. h w", "{0}"},
      {"aten.triu.default", ".. h! w! -> .. h w", "{0}"},
      {"aten.flip.default", "", "", nullptr, flip},
      {"aten.roll.default", "", "", nullptr, roll},
      {"aten.rot90.default", "", "", nullptr, rot90},
      {"aten.glu.default", "", "", nullptr, glu},
      {"aten.glu_backward.default", "", "", nullptr, glu_backward},
      {"aten.unfold.default", "", "", nullptr, glu},
      {"aten.unfold_backward.default", "", "", result_shape<1>, glu_backward},
      {"aten.diagonal.default", "", "", nullptr, diagonal_2, kView},
      {"aten.diagonal_backward.default", "", "", result_shape<1>, diagonal_backward},
      {"aten.diag_embed.default", "", "", nullptr, diag_embed},
      {"aten.diagonal_scatter.default", "", "", nullptr, diagonal_scatter},
  };
}

}  // namespace medley
