#include "medley/candidates/memory_ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "medley/base/at.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/schedule/h1f1b.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

constexpr int kMostRepairs = 8;  // per plan that does not fit

struct Shortage {
  size_t pipeline = 0, stage = 0;
  int device = 0;  // in the cluster
  double bytes = 0;
};

// Returns the bytes of a micro-batch's inputs on the first device, which has most rows.
int64_t batch_bytes(const LoweredStage& stage) {
  int64_t sum = 0;
  for (const Input& input : stage.graph.inputs)
    if (input.kind == InputKind::kBatch)
      sum += num_bytes(type_of(stage.graph, input.value), stage.tables[0][0]);
  return sum;
}

void recompute(StageConfig& config, std::string_view how, int in_flight) {
  config.recompute = how;
  config.in_flight = how == kRecompute[2] ? in_flight : 1;
}

// Raises the stage's memory price. Returns false if it is the highest.
bool raise_price(StageConfig& config, const StageRange& range) {
  if (range.devices == 1 || config.byte_price >= kMostBytePrice) return false;
  config.byte_price = std::max(1.0, config.byte_price * kBytePriceStep);
  return true;
}

// Finds the device of each stage that lacks most, counting inputs of micro-batches that are not
// lowered. The stage that lacks most is first.
std::vector<Shortage> find_shortages(const CandidateTrial& trial, const Cluster& cluster) {
  std::vector<Shortage> worst;  // in stage order
  for (const auto& [stage, device, use] : memory_uses(trial.program)) {
    const LoweredStage& lowered = trial.program.stages[at(stage)];
    const auto p = at(lowered.pipeline);
    size_t first = 0;  // stages of the pipelines before it
    for (size_t before = 0; before < p; ++before) first += trial.pipelines[before].stages.size();
    const size_t more = trial.plan.pipelines[p].microbatches.size() - lowered.tables.size();
    const int64_t waiting = static_cast<int64_t>(more) * batch_bytes(lowered);
    const double missing =
        static_cast<double>(use.peak + waiting) - cluster.kind(device).memory_bytes;
    if (missing <= 0) continue;
    const Shortage own{p, at(stage) - first, device, missing};
    if (worst.empty() ||
        std::pair(worst.back().pipeline, worst.back().stage) != std::pair(own.pipeline, own.stage))
      worst.push_back(own);
    else if (own.bytes > worst.back().bytes)
      worst.back() = own;
  }
  std::ranges::stable_sort(worst, std::ranges::greater{}, &Shortage::bytes);
  return worst;
}

std::string explain(const Shortage& shortage, const CandidateTrial& trial, const Cluster& cluster) {
  return fmt::format(
      "{}stage {} with {} micro-batches in flight: {} lacks {}",
      trial.pipelines.size() > 1 ? fmt::format("pipeline {}, ", shortage.pipeline) : "",
      shortage.stage,
      trial.turns[shortage.pipeline].in_flight[shortage.stage],
      cluster.devices[at(shortage.device)].name,
      to_string(Bytes{static_cast<int64_t>(shortage.bytes)}));
}

// Returns the fastest change with room: none (if that may help), a higher memory price for a stage,
// or more recomputation. Equal pipelines stay equal.
std::optional<PlanCandidate> with_less_memory(CandidateTrials& trials,
                                              const PlanCandidate& candidate,
                                              size_t pipeline,
                                              size_t stage,
                                              const Extra& extra,
                                              bool as_it_is) {
  const PipelineCandidate& now = candidate.pipelines[pipeline];
  const StageConfig& config = now.configs[stage];
  const auto with = [&](const StageConfig& other) {
    PlanCandidate changed = candidate;
    for (size_t q = 0; q < changed.pipelines.size(); ++q)
      if (candidate.pipelines[q] == now) changed.pipelines[q].configs[stage] = other;
    return changed;
  };
  StageConfig dearer = config;
  bool is_dearer = raise_price(dearer, now.stages[stage]);
  const int wanted =
      ideal_in_flight(schedule_request((*trials.stages(candidate))[pipeline]))[stage];
  std::vector<PlanCandidate> again;
  for (const std::string_view how : {kRecompute[2], kRecompute[1]}) {
    if (how == config.recompute) continue;
    StageConfig other = config;
    recompute(other, how, wanted);
    again.push_back(with(other));
  }
  std::vector<PlanCandidate> all = again;
  if (is_dearer) all.push_back(with(dearer));
  trials.solve(all);
  std::optional<PlanCandidate> best;
  Nanoseconds least;
  const auto attempt = [&](PlanCandidate each) {
    const std::optional<ExactStages> plans = trials.exact_stages(each, extra);
    if (!plans) return false;
    const Nanoseconds time = trials.time_of(each, *plans);
    if (best && time >= least) return true;
    best = std::move(each);
    least = time;
    return true;
  };
  if (as_it_is) attempt(candidate);
  while (is_dearer && !attempt(with(dearer))) is_dearer = raise_price(dearer, now.stages[stage]);
  for (PlanCandidate& each : again) attempt(std::move(each));
  return best;
}

// Tries rising memory prices, then these with blocks and with all recomputed, and keeps the first
// that fits. Returns whether one fits.
bool make_room(CandidateTrials& trials, PipelineCandidate& pipeline, size_t stage, bool is_alone) {
  StageConfig& config = pipeline.configs[stage];
  const StageConfig first = config;
  const StageRange& range = pipeline.stages[stage];
  for (const std::string_view how :
       {first.recompute, std::string_view(kRecompute[2]), std::string_view(kRecompute[1])}) {
    config = first;
    if (how != first.recompute) recompute(config, how, 1);
    do {
      const std::optional<StageSolution>& solved = trials.solution(pipeline, stage);
      if (solved && trials.places().room(solved->option, range, 1, is_alone) > 0) return true;
    } while (raise_price(config, range));
  }
  config = first;
  return false;
}

}  // namespace

bool recompute_more(CandidateTrials& trials, PlanCandidate& candidate, std::string_view how) {
  std::optional<ExactStages> plans = trials.stages(candidate);
  if (!plans) return false;
  bool lacks = false;
  for (size_t p = 0; p < plans->size(); ++p) {
    PipelinePlan& plan = (*plans)[p];
    const std::vector<int> wanted = ideal_in_flight(schedule_request(plan));
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      if (plan.stages[s].room >= wanted[s]) continue;
      recompute(candidate.pipelines[p].configs[s], how, wanted[s]);
      lacks = true;
    }
    for (PipelineStage& stage : plan.stages) stage.room = plan.microbatches;
  }
  const std::optional<Nanoseconds>& known = trials.places().request.faster_than;
  return lacks && (!known || trials.time_of(candidate, *plans) < *known);
}

void make_room(CandidateTrials& trials, PlanCandidate& candidate) {
  const std::optional<ExactStages> plans = trials.stages(candidate);
  for (size_t p = 0; plans && p < plans->size(); ++p)
    for (size_t s = 0; s < (*plans)[p].stages.size(); ++s)
      if ((*plans)[p].stages[s].room < 1 &&
          !make_room(trials, candidate.pipelines[p], s, candidate.pipelines.size() == 1))
        return;
}

// The first of equal pipelines represents all of them.
void make_more_room(CandidateTrials& trials, PlanCandidate& candidate) {
  for (size_t p = 0; p < candidate.pipelines.size(); ++p) {
    if (!is_first_identical(candidate.pipelines, p)) continue;
    const std::optional<ExactStages> plans = trials.exact_stages(candidate);
    if (!plans) return;
    const std::vector<int> wanted = ideal_in_flight(schedule_request((*plans)[p]));
    for (size_t s = 0; s < wanted.size(); ++s)
      if ((*plans)[p].stages[s].room < wanted[s])
        if (auto other = with_less_memory(trials, candidate, p, s, {}, true))
          candidate = std::move(*other);
  }
}

bool fit(CandidateTrials& trials,
         PlanCandidate& candidate,
         std::optional<CandidateTrial>& trial,
         std::optional<Nanoseconds> below,
         std::string& misfit) {
  const Cluster& cluster = trials.places().request.cluster;
  Extra extra;
  for (const PipelineCandidate& pipeline : candidate.pipelines)
    extra.emplace_back(pipeline.stages.size());
  for (int repair = 0; repair < kMostRepairs; ++repair) {
    if (!trial) trial = trials.trial(candidate, extra);
    if (!trial) return false;
    if (trial->program.stages.empty()) trials.lower(*trial);
    // A candidate slower than a fitting one needs no memory check. The first candidate needs no
    // time before it fits.
    if (below && !trial->step) trials.simulate(*trial);
    if (below && *trial->step >= *below) return false;
    const std::vector<Shortage> shortages = find_shortages(*trial, cluster);
    if (shortages.empty()) {
      if (!trial->step) trials.simulate(*trial);
      return true;
    }
    if (misfit.empty()) misfit = explain(shortages[0], *trial, cluster);
    bool was_late = false;
    for (const Shortage& each : shortages) {
      if (trial->turns[each.pipeline].deferred_weights[each.stage] == 0) continue;
      extra[each.pipeline][each.stage].is_whole = was_late = true;
    }
    if (was_late) {
      trial.reset();
      --repair;
      continue;
    }
    // Equal pipelines have equal shortages.
    const auto [p, s, device, missing] = shortages[0];
    const PipelineStage& stage = trial->pipelines[p].stages[s];
    const int in_flight = trial->turns[p].in_flight[s];
    const Bytes found = trials.places().pools[at(stage.range.pool)].memory +
                        Bytes{static_cast<int64_t>(std::ceil(missing))};
    const PipelineCandidate& lacks = candidate.pipelines[p];
    // Fewer in flight may leave the shortage as large.
    const bool may_help = in_flight >= extra[p][s].in_flight || missing < extra[p][s].missing;
    for (size_t q = 0; q < candidate.pipelines.size(); ++q)
      if (candidate.pipelines[q] == lacks)
        extra[q][s] = {found - bytes_needed(stage.option, in_flight), in_flight, true, missing};
    std::optional<PlanCandidate> other = with_less_memory(trials, candidate, p, s, extra, may_help);
    if (!other) return false;
    candidate = std::move(*other);
    trial.reset();
  }
  return false;
}

}  // namespace medley
