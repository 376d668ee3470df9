#include "medley/lower/graph_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/plan/compute_types.h"

namespace medley {
namespace {

size_t count_microbatches(const Plan& plan) {
  size_t count = 0;
  for (const Pipeline& pipeline : plan.pipelines) count += pipeline.microbatches.size();
  return count;
}

}  // namespace

std::string why_one_pipeline(const Graph& graph) {
  for (const Output& output : graph.outputs)
    if (output.kind == OutputKind::kBuffer)
      return fmt::format("the forward phase changes buffer \"{}\"", output.name);
  return "";
}

GraphAnalysis analyse(const Graph& graph,
                      const Plan& plan,
                      const Cluster& cluster,
                      const Optimizer& optimizer) {
  Optimizer chosen = optimizer;
  const bool learns = std::ranges::count(graph.outputs, OutputKind::kGradient, &Output::kind) > 0;
  chosen.scales_loss = learns && computes_in_f16(plan, graph, cluster);
  if (chosen.scales_loss && optimizer.updates() &&
      std::ranges::none_of(graph.ops, [](const Op& op) { return op.name == kLossScale; }))
    throw Error(Blame::kCaller,
                fmt::format("plan: bf16_as: found f16, for which graph \"{}\" has no {}, expected "
                            "one that is captured again",
                            graph.name,
                            kLossScale));
  return analyse(graph, chosen);
}

int64_t count_batches(const Plan& plan) {
  const size_t count = count_microbatches(plan);
  return plan.loss_over_microbatches && count > 1 ? static_cast<int64_t>(count) : 0;
}

void check_cross_sample(const GraphAnalysis& analysis, const Plan& plan) {
  const size_t count = count_microbatches(plan);
  if (count == 1 || plan.loss_over_microbatches || analysis.coupling.empty()) return;
  throw Error(Blame::kCaller,
              fmt::format("plan: {}: found {}, expected 1, because {}",
                          plan.pipelines.size() == 1 ? "pipelines[0].microbatches"
                                                     : "micro-batches of all pipelines",
                          count,
                          analysis.coupling));
}

void check_one_pipeline(const Plan& plan, const Graph& graph) {
  const std::string why = why_one_pipeline(graph);
  if (plan.pipelines.size() == 1 || why.empty()) return;
  throw Error(
      Blame::kCaller,
      fmt::format("plan: pipelines: found {}, expected 1, since {}", plan.pipelines.size(), why));
}

// Refuses a read buffer that another stage changes, as micro-batches cannot see such values.
void check_buffers_in_one_stage(const std::vector<DecidedStage>& stages,
                                const std::vector<Connections>& connections) {
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].batches == 0) continue;
    for (const Output& output : stages[s].completed.prepared->graph.outputs)
      for (const auto& [value, crossing] : connections[s].receives)
        if (crossing.once && value == output.value)
          throw Error(
              Blame::kCaller,
              // Several pipelines change no buffers.
              fmt::format("plan: pipelines[0].stages[{}]: found buffer \"{}\" read here and "
                          "changed in another stage, expected one stage that does both, "
                          "since loss_over is \"microbatches\"",
                          s,
                          output.name));
  }
}

}  // namespace medley
