// Whether the program of a candidate has room on its devices, and what it lacks; and of a stage
// that lacks it what has.

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/pipelines/candidates.h"
#include "medley/program/lower.h"
#include "medley/program/memory.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {
namespace {

// The inputs of a micro-batch on the first device, which has most rows.
int64_t batch_bytes(const LoweredStage& stage) {
  int64_t sum = 0;
  for (const Input& input : stage.graph.inputs)
    if (input.kind == InputKind::kBatch)
      sum += num_bytes(type_of(stage.graph, input.value), stage.tables[0][0]);
  return sum;
}

}  // namespace

// Of the device that lacks most, where the inputs of micro-batches that are not lowered wait, too.
std::optional<CandidateSet::Shortage> CandidateSet::find_shortage(const Trial& trial) const {
  std::optional<Shortage> worst;
  for (const auto& [stage, device, use] : memory_uses(trial.program)) {
    const LoweredStage& lowered = trial.program.stages[at(stage)];
    const auto p = at(lowered.pipeline);
    size_t first = 0;  // stages of the pipelines before it
    for (size_t before = 0; before < p; ++before) first += trial.pipelines[before].stages.size();
    const size_t more = trial.plan.pipelines[p].microbatches.size() - lowered.tables.size();
    const int64_t waiting = static_cast<int64_t>(more) * batch_bytes(lowered);
    const double missing =
        static_cast<double>(use.peak + waiting) - request_.cluster.kind(device).memory_bytes;
    if (missing > 0 && (!worst || missing > worst->bytes))
      worst = Shortage{p, at(stage) - first, device, missing};
  }
  return worst;
}

std::string CandidateSet::explain(const Shortage& shortage, const Trial& trial) const {
  return fmt::format(
      "{}stage {} with {} micro-batches in flight: {} lacks {}",
      trial.pipelines.size() > 1 ? fmt::format("pipeline {}, ", shortage.pipeline) : "",
      shortage.stage,
      trial.turns[shortage.pipeline].in_flight[shortage.stage],
      request_.cluster.devices[at(shortage.device)].name,
      to_string(Bytes{static_cast<int64_t>(shortage.bytes)}));
}

// As it is at higher and higher prices of memory, then the same with blocks and with all computed
// again: the first that has room. Returns whether one has.
bool CandidateSet::make_room(PipelineCandidate& pipeline, size_t stage) {
  StageConfig& config = pipeline.configs[stage];
  const StageConfig first = config;
  const int pool = pipeline.stages[stage].pool;
  for (const std::string_view how :
       {first.recompute, std::string_view(kRecompute[2]), std::string_view(kRecompute[1])}) {
    config = first;
    if (how != first.recompute) config.recompute = how, config.in_flight = 1;
    for (;;) {
      const std::optional<StageSolution>& solved = solution(pipeline, stage);
      if (solved && room(solved->option, pool, 1) > 0) return true;
      if (pipeline.stages[stage].devices == 1 || config.byte_price >= kMostBytePrice) break;
      config.byte_price = std::max(1.0, config.byte_price * kBytePriceStep);
    }
  }
  config = first;
  return false;
}

void CandidateSet::make_room(PlanCandidate& candidate) {
  const std::optional<std::vector<PipelinePlan>> plans = stages(candidate, {});
  for (size_t p = 0; plans && p < plans->size(); ++p)
    for (size_t s = 0; s < (*plans)[p].stages.size(); ++s)
      if ((*plans)[p].stages[s].room < 1 && !make_room(candidate.pipelines[p], s)) return;
}

}  // namespace medley
