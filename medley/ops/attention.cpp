// Our own coarse ops that capture writes; local_ops.h defines them.

#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// attention(q, k, v, bias?, causal, scale): under a causal mask a shard of the queries would need
// its offset.
std::optional<Instance> attention(const Graph& graph, const Op& op) {
  return instantiate(
      flag(op, 4)
          ? "b (g r) s! h!, b g t! h, b g t e, b& (g r)& s& t&? -> b (g r) s e, b (g r) s =e"
          : "b (g r) s h!, b g t! h, b g t e, b& (g r)& s& t&? -> b (g r) s e, b (g r) s =e",
      "",
      graph,
      op);
}

// attention_backward(grad_out, q, k, v, bias?, out, lse, causal, scale)
std::optional<Instance> attention_backward(const Graph& graph, const Op& op) {
  return instantiate(
      flag(op, 7) ? "b (g r) s! e!, b (g r) s h!, b g t! h, b g t e, b& (g r)& s& t&?, b (g r) s e,"
                    " b (g r) s -> b (g r) s h, b g t h, b g t e"
                  : "b (g r) s e!, b (g r) s h!, b g t! h, b g t e, b& (g r)& s& t&?, b (g r) s e,"
                    " b (g r) s -> b (g r) s h, b g t h, b g t e",
      "{0}",
      graph,
      op);
}

// dropout(x, rng, p, site, sizes, origin, full): the local box in factors.
void box_local(Op& local, const LocalForm& form) {
  local.arguments.at(4) = form.factor_sizes;
  local.arguments.at(5) = form.factor_offsets;
  local.arguments.at(6) = form.factor_fulls;
}

// random(rng, distribution, site, shape, sizes, origin, full, dtype): every dim may be cut.
std::optional<Instance> drawn(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  for (size_t d = 0; d < builder.result().size(); ++d)
    builder.label_result(0, d, builder.label(builder.result()[d]));
  return builder.finish({});
}

void random_local(Op& local, const LocalForm& form) {
  local.arguments.at(3) = form.results.at(0).shape;
  box_local(local, form);
}

template <size_t k_offset>
void experts_local(Op& local, const LocalForm& form) {
  if (cuts(form, "x")) local.arguments.at(k_offset) = select_offset(form, "x");
}

}  // namespace

std::vector<Rule> attention_rules() {
  constexpr WorkClass kAttention = WorkClass::kAttention, kMatmul = WorkClass::kMatmul;
  return {
      {"medley.attention.default", "", "", nullptr, attention, kAttention},
      {"medley.attention_backward.default", "", "", nullptr, attention_backward, kAttention},
      {"medley.dropout.default", ".., _ -> ..", "{0}", box_local},
      {"medley.dropout_backward.default", ".., _ -> ..", "{0}", box_local},
      {"medley.random.default", "", "", random_local, drawn},
      {"medley.mean_loss.default", "1, 1 -> 1", "{0}"},
      {"medley.mean_loss_backward.default", "1, 1 -> 1", "{0}"},
      {"medley.experts.default",
       "n h!, n k!, n k, x~ (c! f) h, x o f -> n o",
       "{2}{4}",
       experts_local<6>,
       nullptr,
       kMatmul},
      {"medley.experts_backward.default",
       "n o!, n h!, n k!, n k, x~ (c! f) h, x o f -> n h, n k, x (c f) h, x o f",
       "{0}",
       experts_local<7>,
       nullptr,
       kMatmul},
  };
}

}  // namespace medley
