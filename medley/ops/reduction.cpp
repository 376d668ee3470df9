#include <algorithm>

#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

enum class Combine { kSum, kMax, kLock };

// Maps the kept dims. `whole` ops have no list of dims: all are reduced.
std::optional<Instance> reduce(
    const Graph& graph, const Op& op, bool whole, Combine combine, size_t argument = 1) {
  InstanceBuilder builder(graph, op);
  const auto& from = builder.operand(0);
  std::vector<size_t> all(from.size());
  for (size_t d = 0; d < all.size(); ++d) all[d] = d;
  const auto reduced = whole ? all : dims(op, argument, from.size());
  if (!reduced) return std::nullopt;
  const bool keeps = builder.result().size() == from.size();
  for (size_t d = 0, kept = 0; d < from.size(); ++d) {
    const bool gone = std::ranges::binary_search(*reduced, d);
    const int label = builder.label(from[d], gone && combine == Combine::kLock);
    builder.label_operand(0, d, label);
    for (size_t j = 0; !gone && j < op.results.size(); ++j)
      if (op.results[j] != kNone) builder.label_result(j, keeps ? d : kept, label);
    if (!gone) ++kept;
  }
  const bool linear = combine == Combine::kSum;
  Instance instance =
      builder.finish(linear ? std::vector<std::vector<int>>{{0}} : std::vector<std::vector<int>>{});
  if (combine == Combine::kMax) std::ranges::fill(instance.absent.at(0), Absent::kMax);
  return instance;
}

std::optional<Instance> sum(const Graph& graph, const Op& op) {
  return reduce(graph, op, false, Combine::kSum);
}
std::optional<Instance> sum_all(const Graph& graph, const Op& op) {
  return reduce(graph, op, true, Combine::kSum);
}
std::optional<Instance> maximum(const Graph& graph, const Op& op) {
  return reduce(graph, op, false, Combine::kMax);
}
std::optional<Instance> maximum_all(const Graph& graph, const Op& op) {
  return reduce(graph, op, true, Combine::kMax);
}
std::optional<Instance> locked(const Graph& graph, const Op& op) {
  return reduce(graph, op, false, Combine::kLock);
}
std::optional<Instance> locked_all(const Graph& graph, const Op& op) {
  return reduce(graph, op, true, Combine::kLock);
}
std::optional<Instance> vector_norm(const Graph& graph, const Op& op) {
  return reduce(graph, op, is_none(op, 2), Combine::kLock, 2);
}

bool cuts_reduced(const LocalForm& form) {
  const auto& results = form.instance->results.at(0);
  return std::ranges::any_of(form.cuts, [&](const LocalCut& each) {
    return std::ranges::none_of(results, [&](const std::vector<int>& labels) {
      return std::ranges::find(labels, each.cut.label) != labels.end();
    });
  });
}

// Returns a mean over a cut dim: the local sum over the whole count. mean(x, dtype), mean.dim(x,
// dims, keepdim, dtype).
void mean_local(Op& local, const LocalForm& form) {
  if (!cuts_reduced(form)) return;
  const size_t rank = form.operands.at(0).shape.size();
  const bool whole = local.name == "aten.mean.default";
  std::vector<size_t> all(rank);
  for (size_t d = 0; d < rank; ++d) all[d] = d;
  const std::vector<size_t> reduced = whole ? all : dims(local, 1, rank).value_or(all);
  std::vector<Size> listed;
  for (size_t d : reduced) listed.emplace_back(static_cast<int64_t>(d));
  const Argument keeps = whole ? Argument(false) : local.arguments.at(2);
  const Argument dtype = local.arguments.at(whole ? 1 : 3);
  local.name = "medley.mean.default";
  local.arguments = {local.arguments.at(0), listed, keeps, dtype, whole_count(form, 0, reduced)};
}

// A loss (prediction, target, weights...), or its backward with a gradient in front. `argument`:
// the reduction.
std::optional<Instance> loss(const Graph& graph, const Op& op, size_t argument) {
  const int64_t reduction = integer(op, argument).value_or(1);
  const bool sums = reduction == kReduceSum;
  if (reduction == kReduceNone) return instantiate("..&, .., ..?, ..? -> ..", "", graph, op);
  return instantiate(sums ? ".., .., ..?, ..? -> 1" : "..!, .., ..?, ..? -> 1", "", graph, op);
}

std::optional<Instance> loss_backward(const Graph& graph, const Op& op, size_t argument) {
  const int64_t reduction = integer(op, argument).value_or(1);
  if (reduction == kReduceNone) return instantiate(".., .., .., ..? -> ..", "{0}", graph, op);
  return instantiate(
      reduction == kReduceSum ? "1, .., .., ..? -> .." : "1, ..!, .., ..? -> ..", "{0}", graph, op);
}

std::optional<Instance> loss_2(const Graph& graph, const Op& op) { return loss(graph, op, 2); }
std::optional<Instance> loss_3(const Graph& graph, const Op& op) { return loss(graph, op, 3); }
std::optional<Instance> loss_4(const Graph& graph, const Op& op) { return loss(graph, op, 4); }
std::optional<Instance> loss_backward_3(const Graph& graph, const Op& op) {
  return loss_backward(graph, op, 3);
}
std::optional<Instance> loss_backward_4(const Graph& graph, const Op& op) {
  return loss_backward(graph, op, 4);
}

}  // namespace

std::vector<Rule> reduction_rules() {
  return {
      {"aten.sum.dim_IntList", "", "", nullptr, sum},
      {"aten.sum.default", "", "", nullptr, sum_all},
      {"aten.mean.dim", "", "", mean_local, sum},
      {"aten.mean.default", "", "", mean_local, sum_all},
      {"aten.amax.default", "", "", nullptr, maximum},
      {"aten.max.default", "", "", nullptr, maximum_all},
      {"aten.amin.default", "", "", nullptr, locked},
      {"aten.min.default", "", "", nullptr, locked_all},
      {"aten.any.default", "", "", nullptr, locked_all},
      {"aten.any.dim", "", "", nullptr, locked},
      {"aten.all.default", "", "", nullptr, locked_all},
      {"aten.all.dim", "", "", nullptr, locked},
      {"aten.prod.dim_int", "", "", nullptr, locked},
      {"aten.var.correction", "", "", nullptr, locked},
      {"aten.std.correction", "", "", nullptr, locked},
      {"aten.logsumexp.default", "", "", nullptr, locked},
      {"aten.var_mean.correction", "", "", nullptr, locked},
      {"aten.norm.ScalarOpt_dim", "", "", nullptr, vector_norm},
      {"aten.linalg_vector_norm.default", "", "", nullptr, vector_norm},
      {"aten.mse_loss.default", "", "", nullptr, loss_2},
      {"aten.mse_loss_backward.default", "", "", nullptr, loss_backward_3},
      {"aten.smooth_l1_loss.default", "", "", nullptr, loss_2},
      {"aten.smooth_l1_loss_backward.default", "", "", nullptr, loss_backward_3},
      {"aten.huber_loss.default", "", "", nullptr, loss_2},
      {"aten.huber_loss_backward.default", "", "", nullptr, loss_backward_3},
      {"aten.soft_margin_loss.default", "", "", nullptr, loss_2},
      {"aten.soft_margin_loss_backward.default", "", "", nullptr, loss_backward_3},
      {"aten.binary_cross_entropy.default", "", "", nullptr, loss_3},
      {"aten.binary_cross_entropy_backward.default", "", "", nullptr, loss_backward_4},
      {"aten.binary_cross_entropy_with_logits.default", "", "", nullptr, loss_4},
  };
}

}  // namespace medley
