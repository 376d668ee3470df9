#include <string>

#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// The dim of a softmax is `argument`: composite; all others map.
std::optional<Instance> softmax_dim(const Graph& graph,
                                    const Op& op,
                                    size_t argument,
                                    std::vector<std::vector<int>> linear) {
  InstanceBuilder builder(graph, op);
  const auto& to = builder.result();
  const auto d = dim(op, argument, to.size());
  for (size_t i = 0; i < builder.num_operands(); ++i)
    if (builder.operand(i) != to) return std::nullopt;
  if (!d) return std::nullopt;
  for (size_t k = 0; k < to.size(); ++k) {
    const int label = builder.label(to[k], k == *d);
    if (k == *d && label != kNone) builder.instance().labels.back().composite = true;
    for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, k, label);
    builder.label_result(0, k, label);
  }
  return builder.finish(std::move(linear));
}

std::optional<Instance> softmax(const Graph& graph, const Op& op) {
  return softmax_dim(graph, op, 1, {});
}
std::optional<Instance> softmax_backward(const Graph& graph, const Op& op) {
  return softmax_dim(graph, op, 2, {{0}});
}

// "h0! h1!" for a normalised shape of two dims, and "1 1" for its statistics.
struct Normalised {
  std::string dims, ones;
};
std::optional<Normalised> normalised(const Op& op, size_t argument) {
  if (argument >= op.arguments.size()) return std::nullopt;
  const auto* shape = std::get_if<std::vector<Size>>(&op.arguments[argument]);
  if (!shape) return std::nullopt;
  Normalised text;
  for (size_t k = 0; k < shape->size(); ++k) {
    text.dims += " h" + std::to_string(k) + "!";
    text.ones += " 1";
  }
  return text;
}

std::optional<Instance> layer_norm(const Graph& graph, const Op& op) {
  const auto n = normalised(op, 1);
  if (!n) return std::nullopt;
  return instantiate(".." + n->dims + "," + n->dims + "?," + n->dims + "? -> .." + n->dims +
                         ", .." + n->ones + ", .." + n->ones,
                     "",
                     graph,
                     op);
}

std::optional<Instance> layer_norm_backward(const Graph& graph, const Op& op) {
  const auto n = normalised(op, 2);
  if (!n) return std::nullopt;
  return instantiate(".." + n->dims + ", .." + n->dims + ", .." + n->ones + ", .." + n->ones + "," +
                         n->dims + "?," + n->dims + "? -> .." + n->dims + "," + n->dims + "," +
                         n->dims,
                     "{0}",
                     graph,
                     op);
}

std::optional<Instance> rms_norm(const Graph& graph, const Op& op) {
  const auto n = normalised(op, 1);
  if (!n) return std::nullopt;
  return instantiate(
      ".." + n->dims + "," + n->dims + "? -> .." + n->dims + ", .." + n->ones, "", graph, op);
}

std::optional<Instance> rms_norm_backward(const Graph& graph, const Op& op) {
  const auto n = normalised(op, 2);
  if (!n) return std::nullopt;
  return instantiate(".." + n->dims + ", .." + n->dims + ", .." + n->ones + "," + n->dims +
                         "? -> .." + n->dims + "," + n->dims,
                     "{0}",
                     graph,
                     op);
}

// _native_batch_norm_legit_functional(x, weight?, bias?, mean, var, training, momentum, eps):
// statistics of the batch, or given ones, which leave the rows independent. The kernel for these
// divides by the elements behind the channels, possibly none.
std::optional<Instance> batch_norm(const Graph& graph, const Op& op) {
  return instantiate(flag(op, 5) ? "n% c x..!, c?, c?, c, c -> n c x.., c, c, c, c"
                                 : "n c x..!, c?, c?, c, c -> n c x.., _, _, c =n, c =n",
                     "",
                     graph,
                     op);
}

// native_batch_norm_backward(grad, x, weight?, mean?, var?, saved mean?, saved rstd?, train, eps,
// mask)
std::optional<Instance> batch_norm_backward(const Graph& graph, const Op& op) {
  return instantiate(flag(op, 7) ? "n% c x..!, n c x.., c?, c?, c?, c?, c? -> n c x.., c, c"
                                 : "n c x.., n c x.., c?, c?, c?, _?, _? -> n c x.., c, c",
                     "{0}",
                     graph,
                     op);
}

// native_group_norm(x, weight, bias, N, C, HxW, group, eps) and its backward: counts of the shard.
template <size_t k_count>
void group_norm_local(Op& local, const LocalForm& form) {
  const auto& shape = form.operands.at(0).shape;
  const Size groups =
      k_count == 3 ? form.results.at(1).shape.at(1) : form.operands.at(2).shape.at(1);
  local.arguments.at(k_count) = shape.at(0);
  local.arguments.at(k_count + 1) = shape.at(1);
  local.arguments.at(k_count + 3) = groups;
}

}  // namespace

std::vector<Rule> normalisation_rules() {
  return {
      {"aten._softmax.default", "", "", nullptr, softmax},
      {"aten._log_softmax.default", "", "", nullptr, softmax},
      {"aten._softmax_backward_data.default", "", "", nullptr, softmax_backward},
      {"aten._log_softmax_backward_data.default", "", "", nullptr, softmax_backward},
      {"aten.native_layer_norm.default", "", "", nullptr, layer_norm},
      {"aten.native_layer_norm_backward.default", "", "", nullptr, layer_norm_backward},
      {"aten._fused_rms_norm.default", "", "", nullptr, rms_norm},
      {"aten._fused_rms_norm_backward.default", "", "", nullptr, rms_norm_backward},
      {"aten._native_batch_norm_legit_functional.default", "", "", nullptr, batch_norm},
      {"aten._native_batch_norm_legit.no_stats", "n! c x..!, c?, c? -> n c x.., c, c", ""},
      {"aten._native_batch_norm_legit_no_training.default",
       "n c x..!, c?, c?, c, c -> n c x.., _=n=c, _=n=c",
       ""},
      {"aten.native_batch_norm_backward.default", "", "", nullptr, batch_norm_backward},
      {"aten.native_group_norm.default",
       "n (g h!) x..!, (g h)?, (g h)? -> n (g h) x.., n g, n g",
       "",
       group_norm_local<3>},
      {"aten.native_group_norm_backward.default",
       "n (g h!) x..!, n (g h) x.., n g, n g, (g h)? -> n (g h) x.., (g h), (g h)",
       "{0}",
       group_norm_local<5>},
  };
}

}  // namespace medley
