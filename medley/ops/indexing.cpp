#include <algorithm>

#include "medley/base/at.h"
#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
void embedding_local(Op& local, const LocalForm& form) {
  if (!cuts(form, "v")) return;
  local.name = "medley.embedding_select.default";
  local.arguments = {local.arguments.at(0), local.arguments.at(1), select_offset(form, "v")};
}

// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq): with
// scale_grad_by_freq the indices of all rows count.
std::optional<Instance> embedding_backward(const Graph& graph, const Op& op) {
  return instantiate(flag(op, 4) ? "..! e, .. -> v~ e" : ".. e, .. -> v~ e", "{0}", graph, op);
}

void embedding_backward_local(Op& local, const LocalForm& form) {
  local.arguments.at(2) = form.results.at(0).shape.at(0);
  if (!cuts(form, "v")) return;
  local.name = "medley.embedding_backward_select.default";
  local.arguments.emplace_back(select_offset(form, "v"));
}

// Whole only: a mean over rows on several devices is no sum of means. Capture writes a sum and
// mean_loss.
std::optional<Instance> nll(const Graph& graph, const Op& op) {
  switch (integer(op, 3).value_or(kReduceMean)) {
    case kReduceNone:
      return instantiate("n v~, n, w!? -> n, 1 =v=n", "", graph, op);
    case kReduceSum:
      return instantiate("n v~, n, w!? -> 1, 1 =v", "", graph, op);
    default:
      return instantiate("n! v!, n, w!? -> 1, 1", "", graph, op);
  }
}

std::optional<Instance> nll_backward(const Graph& graph, const Op& op) {
  switch (integer(op, 4).value_or(kReduceMean)) {
    case kReduceNone:
      return instantiate("n, n v~, n, w!?, 1 -> n v", "{0}", graph, op);
    case kReduceSum:
      return instantiate("1, n v~, n, w!?, 1 -> n v", "{0}", graph, op);
    default:
      return instantiate("1, n! v!, n, w!?, 1 -> n v", "{0}", graph, op);
  }
}

void nll_local(Op& local, const LocalForm& form) {
  if (!cuts(form, "v")) return;
  local.name = "medley.nll_select.default";
  local.arguments.emplace_back(select_offset(form, "v"));
}

void nll_backward_local(Op& local, const LocalForm& form) {
  if (!cuts(form, "v")) return;
  local.name = "medley.nll_backward_select.default";
  local.arguments.emplace_back(select_offset(form, "v"));
}

bool is_zeros(const Graph& graph, ValueId value) {
  const OpId producer = graph.values[at(value)].producer;
  if (producer == kNone) return false;
  const Op& op = graph.ops[at(producer)];
  if (op.name == "aten.full.default" || op.name == "aten.full_like.default")
    return number(op, 1) == 0.0;
  if (op.name == "aten.new_full.default") return number(op, 2) == 0.0;
  return op.name == "aten.zeros.default" || op.name == "aten.new_zeros.default" ||
         op.name == "aten.zeros_like.default";
}

// The dims of self that a list of index tensors consumes, and the resulting dims.
struct Indexed {
  std::vector<bool> taken;    // [dim of self]
  std::vector<size_t> index;  // operands that are index tensors
  std::vector<Size> made;     // their broadcast shape
  size_t place = 0;           // index of the made dims in the result
};

std::optional<Indexed> indexed(const Graph& graph, const Op& op, const InstanceBuilder& builder) {
  const auto* list = std::get_if<std::vector<ValueArgument>>(&op.arguments.at(1));
  if (!list) return std::nullopt;
  Indexed result;
  result.taken.resize(builder.operand(0).size());
  if (list->size() > result.taken.size()) return std::nullopt;
  size_t first = result.taken.size(), last = 0;
  for (size_t d = 0; d < list->size(); ++d) {
    const ValueId value = (*list)[d].value;
    if (value == kNone) continue;
    if (type_of(graph, value).dtype == DType::kBool) return std::nullopt;
    result.taken[d] = true;
    result.index.push_back(d + 1);
    first = std::min(first, d);
    last = d;
    const auto& shape = builder.operand(d + 1);
    if (shape.size() > result.made.size())
      result.made.insert(result.made.begin(), shape.size() - result.made.size(), Size(1));
    for (size_t k = 0; k < shape.size(); ++k)
      if (Size& size = result.made[result.made.size() - shape.size() + k]; size == Size(1))
        size = shape[k];
  }
  if (result.index.empty()) return std::nullopt;
  const bool together = last - first + 1 == result.index.size();
  result.place = together ? first : 0;
  return result;
}

// Returns labels of the made dims, put on the index tensors (aligned at the right).
std::vector<int> label_made(InstanceBuilder& builder, const Indexed& at, bool locked) {
  std::vector<int> made;
  for (const Size& size : at.made) made.push_back(builder.label(size, locked));
  for (size_t i : at.index) {
    const auto& shape = builder.operand(i);
    const size_t missing = made.size() - shape.size();
    for (size_t k = 0; k < shape.size(); ++k)
      if (shape[k] != Size(1)) builder.label_operand(i, k, made[missing + k]);
  }
  return made;
}

// For self[indices]: labels of its dims in order: kept dims, and the made ones at their place.
struct Selection {
  std::vector<int> self;    // [dim], kNone if taken
  std::vector<int> values;  // [dim]
};
Selection select(InstanceBuilder& builder, const Indexed& at, const std::vector<int>& made) {
  Selection labels;
  for (size_t d = 0; d < at.taken.size(); ++d) {
    labels.self.push_back(at.taken[d] ? kNone : builder.label(builder.operand(0)[d]));
    if (!at.taken[d]) labels.values.push_back(labels.self[d]);
  }
  labels.values.insert(
      labels.values.begin() + static_cast<std::ptrdiff_t>(at.place), made.begin(), made.end());
  return labels;
}

// index(self, indices): indexed dims locked, the others and those of the index tensors map.
std::optional<Instance> index(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto at = indexed(graph, op, builder);
  if (!at) return std::nullopt;
  const auto made = label_made(builder, *at, false);
  const Selection labels = select(builder, *at, made);
  if (labels.values.size() != builder.result().size()) return std::nullopt;
  for (size_t d = 0; d < labels.self.size(); ++d) builder.label_operand(0, d, labels.self[d]);
  for (size_t d = 0; d < labels.values.size(); ++d) builder.label_result(0, d, labels.values[d]);
  return builder.finish({{0}});
}

// index_put(self, indices, values, accumulate). On zeros, values add up to a partial sum. Otherwise
// every device would count `self` once, or not know the last write.
std::optional<Instance> index_put(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto at = indexed(graph, op, builder);
  if (!at) return std::nullopt;
  const size_t values = builder.num_operands() - 1;
  const bool adds = flag(op, 3) && is_zeros(graph, operands(op)[0]);
  const auto made = label_made(builder, *at, !adds);
  const Selection labels = select(builder, *at, made);
  const auto& shape = builder.operand(values);
  if (shape.size() > labels.values.size()) return std::nullopt;
  for (size_t d = 0; d < labels.self.size(); ++d) {
    const int label = at->taken[d] ? builder.label(builder.operand(0)[d], true) : labels.self[d];
    builder.label_operand(0, d, label);
    builder.label_result(0, d, label);
  }
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != Size(1))
      builder.label_operand(values, d, labels.values[labels.values.size() - shape.size() + d]);
  return builder.finish({{0, static_cast<int>(values)}});
}

// gather, scatter: the dim of the argument is locked, others map if all tensors agree on the size.
std::optional<Instance> along_dim(const Graph& graph,
                                  const Op& op,
                                  std::vector<std::vector<int>> linear,
                                  bool adds) {
  InstanceBuilder builder(graph, op);
  const size_t rank = builder.result().size();
  const auto along = dim(op, 1, rank);
  if (!along) return std::nullopt;
  for (size_t i = 0; i < builder.num_operands(); ++i)
    if (builder.operand(i).size() != rank) return std::nullopt;
  const bool gather = builder.num_operands() == 2 && builder.result() == builder.operand(1);
  for (size_t d = 0; d < rank; ++d) {
    bool equal = d != *along;
    for (size_t i = 0; i < builder.num_operands(); ++i)
      equal &= builder.operand(i)[d] == builder.result()[d];
    if (equal) {
      const int label = builder.label(builder.result()[d]);
      for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, d, label);
      builder.label_result(0, d, label);
    } else if (d == *along && (gather || adds)) {
      const int label = builder.label(builder.operand(1)[d]);
      for (size_t i = 1; i < builder.num_operands(); ++i)
        if (builder.operand(i)[d] == builder.operand(1)[d]) builder.label_operand(i, d, label);
      if (gather) builder.label_result(0, d, label);
    }
  }
  return builder.finish(std::move(linear));
}

std::optional<Instance> gather(const Graph& graph, const Op& op) {
  return along_dim(graph, op, {{0}}, false);
}
std::optional<Instance> scatter(const Graph& graph, const Op& op) {
  return along_dim(graph, op, {{0, 2}}, false);
}
std::optional<Instance> scatter_value(const Graph& graph, const Op& op) {
  const bool zero = number(op, 3) == 0.0;
  auto result =
      along_dim(graph,
                op,
                zero ? std::vector<std::vector<int>>{{0}} : std::vector<std::vector<int>>{},
                false);
  return result;
}
std::optional<Instance> scatter_add(const Graph& graph, const Op& op) {
  return along_dim(graph, op, {{0, 2}}, is_zeros(graph, operands(op).at(0)));
}

// index_select(self, dim, index)
std::optional<Instance> index_select(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto along = dim(op, 1, builder.operand(0).size());
  if (!along || builder.num_operands() != 2 || builder.operand(1).size() != 1) return std::nullopt;
  for (size_t d = 0; d < builder.operand(0).size(); ++d) {
    if (d != *along) {
      builder.map(0, d, 0, d);
    } else {
      builder.map(1, 0, 0, d);
    }
  }
  return builder.finish({{0}});
}

// sort, topk, cumsum, argmax: order along one dim, which is locked; the others map.
std::optional<Instance> ordered(const Graph& graph, const Op& op, size_t argument, bool linear) {
  InstanceBuilder builder(graph, op);
  const size_t rank = builder.operand(0).size();
  auto along = argument < op.arguments.size() ? dim(op, argument, rank) : std::nullopt;
  if (is_none(op, argument) && rank == 1) along = 0;
  if (!along) return std::nullopt;
  for (size_t d = 0; d < rank; ++d) {
    if (d == *along) continue;
    const int label = builder.label(builder.operand(0)[d]);
    builder.label_operand(0, d, label);
    for (size_t j = 0; j < op.results.size(); ++j) {
      if (op.results[j] == kNone) continue;
      const bool kept = builder.result(j).size() == rank;
      builder.label_result(j, !kept && d > *along ? d - 1 : d, label);
    }
  }
  return builder.finish(linear ? std::vector<std::vector<int>>{{0}}
                               : std::vector<std::vector<int>>{});
}

// index_add(self, dim, index, source, alpha): the dim is locked.
std::optional<Instance> index_add(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const size_t rank = builder.result().size();
  const auto along = dim(op, 1, rank);
  if (!along || builder.num_operands() != 3 || builder.operand(2).size() != rank)
    return std::nullopt;
  for (size_t d = 0; d < rank; ++d) {
    if (d == *along) continue;
    const int label = builder.label(builder.result()[d]);
    builder.label_operand(0, d, label);
    builder.label_operand(2, d, label);
    builder.label_result(0, d, label);
  }
  return builder.finish({{0, 2}});
}

// histc(x, bins, min, max): equal bounds mean those of the data, which a shard lacks.
std::optional<Instance> histogram(const Graph& graph, const Op& op) {
  return instantiate(number(op, 2) == number(op, 3) ? "..! -> z!" : ".. -> z!", "", graph, op);
}

std::optional<Instance> topk(const Graph& graph, const Op& op) {
  return ordered(graph, op, 2, false);
}
std::optional<Instance> argument_one(const Graph& graph, const Op& op) {
  return ordered(graph, op, 1, false);
}
std::optional<Instance> cumsum(const Graph& graph, const Op& op) {
  return ordered(graph, op, 1, true);
}

}  // namespace

std::vector<Rule> indexing_rules() {
  return {
      {"aten.embedding.default", "v~ e, .. -> .. e", "{0}", embedding_local},
      {"aten.embedding_dense_backward.default",
       "",
       "",
       embedding_backward_local,
       embedding_backward},
      {"aten.nll_loss_forward.default", "", "", nll_local, nll},
      {"aten.nll_loss_backward.default", "", "", nll_backward_local, nll_backward},
      {"aten.index.Tensor", "", "", nullptr, index},
      {.op = "aten.index_put.default",
       .pattern = "",
       .linear = "",
       .instance = index_put,
       .reads_producers = true},
      {"aten._unsafe_index.Tensor", "", "", nullptr, index},
      {.op = "aten._unsafe_index_put.default",
       .pattern = "",
       .linear = "",
       .instance = index_put,
       .reads_producers = true},
      {"medley.dequantize_4bit.default", "n p!, n, _ -> n e!", "{1}{2}"},
      {"aten.index_select.default", "", "", nullptr, index_select},
      {"aten.index_add.default", "", "", nullptr, index_add},
      {"aten.gather.default", "", "", nullptr, gather},
      {"aten.scatter.src", "", "", nullptr, scatter},
      {"aten.scatter.value", "", "", nullptr, scatter_value},
      {.op = "aten.scatter_add.default",
       .pattern = "",
       .linear = "",
       .instance = scatter_add,
       .reads_producers = true},
      {"aten.topk.default", "", "", nullptr, topk},
      {"aten.sort.default", "", "", nullptr, argument_one},
      {"aten.sort.stable", "", "", nullptr, topk},
      {"aten.cumsum.default", "", "", nullptr, cumsum},
      {"aten.cumprod.default", "", "", nullptr, argument_one},
      {"aten.cummax.default", "", "", nullptr, argument_one},
      {"aten.cummin.default", "", "", nullptr, argument_one},
      {"aten.logcumsumexp.default", "", "", nullptr, argument_one},
      {"aten.median.dim", "", "", nullptr, argument_one},
      {"aten.kthvalue.default", "", "", nullptr, topk},
      {"aten.argmin.default", "", "", nullptr, argument_one},
      {"aten.argmax.default", "", "", nullptr, argument_one},
      {"aten.max.dim", "", "", nullptr, argument_one},
      {"aten.min.dim", "", "", nullptr, argument_one},
      {"aten.histc.default", "", "", nullptr, histogram},
  };
}

}  // namespace medley
