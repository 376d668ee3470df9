#include "medley/candidates/candidate_trials.h"

#include <algorithm>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/lower/lower.h"
#include "medley/schedule/h1f1b.h"
#include "medley/sharding/parts.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

// Estimates the time in which D pipelines sum gradients after they are done. A stage exchanges 2 /
// D of its layers' gradients with each other pipeline, while earlier stages of its pipeline run
// backward.
Nanoseconds syncs_after(const CandidatePlaces& places,
                        const PlanCandidate& candidate,
                        const std::vector<PipelinePlan>& plans) {
  if (plans.size() < 2) return {};
  const PlanDevices devices = places.devices_of(candidate);
  const auto bytes_of_both = [&](const StageRange& a, const StageRange& b) {
    return bytes_of(places.gradients, std::max(a.begin, b.begin), std::min(a.end, b.end));
  };
  Nanoseconds most;
  for (size_t p = 0; p < plans.size(); ++p) {
    // Equal pipelines take equally long.
    if (!is_first_identical(plans, p)) continue;
    Nanoseconds overlapped;
    for (size_t s = 0; s < plans[p].stages.size(); ++s) {
      if (s > 0)
        overlapped += plans[p].stages[s - 1].option.backward + plans[p].boundaries[s - 1].backward;
      Nanoseconds sync;
      for (size_t q = 0; q < plans.size(); ++q)
        for (size_t other = 0; q != p && other < plans[q].stages.size(); ++other) {
          const Bytes both = bytes_of_both(plans[p].stages[s].range, plans[q].stages[other].range);
          if (both <= Bytes{}) continue;
          const std::optional<LinkCurve> link =
              link_of(places.topology(), devices[p][s][0], devices[q][other][0]);
          if (!link) return kLongest;
          const StageRange& range = plans[p].stages[s].range;
          const int nodes =
              std::max(1, range.devices / places.device_pools[at(range.pool)].per_node);
          sync += occupied(*link, {both.value * 2 / static_cast<int64_t>(plans.size()) / nodes});
        }
      most = std::max(most, sync - overlapped);
    }
  }
  return most;
}

// Returns the step of all micro-batches from a program with the first ones. The time of one more is
// measured between backward calls of the first stage in steady state.
Nanoseconds simulated_step(const CandidateTrial& trial, const CostModel& costs) {
  const Simulation simulated = simulate(trial.program, costs);
  const std::vector<LoweredStage>& stages = trial.program.stages;
  const int64_t count = std::ssize(trial.plan.pipelines.front().microbatches);
  const auto some = static_cast<int64_t>(stages[0].tables.size());
  if (some == count) return simulated.step;
  const int64_t first = trial.turns[0].in_flight[0], last = some - first - 1;
  Nanoseconds full;
  for (const SimulatedDevice& device : simulated.devices) {
    const int stage = device.stage;
    if (stage > 0 && stages[at(stage)].pipeline == stages[at(stage - 1)].pipeline) continue;
    std::map<FunctionKind, std::vector<Nanoseconds>> by_kind;  // [microbatch]
    for (const SimulatedCall& each : device.calls) by_kind[each.call.function].push_back(each.ends);
    // Without training there is no backward call.
    const auto backward = by_kind.find(FunctionKind::kBackward);
    const std::vector<Nanoseconds>& ends =
        backward == by_kind.end() ? by_kind.at(FunctionKind::kForward) : backward->second;
    full = std::max(full, ends[at(last)] - ends[at(first)]);
  }
  return simulated.step + Nanoseconds{full.value * (count - some) / (last - first)};
}

}  // namespace

std::vector<StageQuery> CandidateTrials::queries(
    const std::vector<PlanCandidate>& candidates) const {
  std::vector<StageQuery> queries;
  for (const PlanCandidate& candidate : candidates)
    for (const PipelineCandidate& pipeline : candidate.pipelines)
      for (size_t s = 0; s < pipeline.stages.size(); ++s)
        queries.push_back(places_.query(pipeline, s));
  return queries;
}

void CandidateTrials::solve(const std::vector<PlanCandidate>& candidates) {
  synthesis_.solve_wholes(queries(candidates));
}

const std::optional<StageSolution>& CandidateTrials::solution(const PipelineCandidate& pipeline,
                                                              size_t stage) {
  return synthesis_.whole(places_.query(pipeline, stage));
}

std::vector<Nanoseconds> CandidateTrials::layer_times(const PipelineCandidate& pipeline,
                                                      size_t stage) {
  std::vector<StageQuery> queries(places_.layers.size(), places_.query(pipeline, stage));
  int next = 0;
  for (StageQuery& each : queries) {
    each.begin = next++;
    each.end = next;
  }
  return synthesis_.sums_of_layers(queries);
}

void CandidateTrials::drop_slower(std::vector<PlanCandidate>& candidates, Nanoseconds step) {
  const std::vector<Nanoseconds> sums = synthesis_.sums_of_layers(queries(candidates));
  size_t next = 0;
  std::erase_if(candidates, [&](const PlanCandidate& candidate) {
    bool slower = false;
    for (const PipelineCandidate& pipeline : candidate.pipelines)
      for (size_t s = 0; s < pipeline.stages.size(); ++s) slower |= sums[next++] > step;
    return slower;
  });
}

size_t CandidateTrials::slowest_stage(const PipelineCandidate& pipeline) {
  std::vector<Nanoseconds> times;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const StageOption& option = solution(pipeline, s)->option;
    times.push_back(option.forward + option.backward);
  }
  return static_cast<size_t>(std::ranges::max_element(times) - times.begin());
}

std::optional<ExactStages> CandidateTrials::stages(const PlanCandidate& candidate,
                                                   const Extra& extra) {
  const PlanDevices devices = places_.devices_of(candidate);
  const bool is_alone = candidate.pipelines.size() == 1;
  ExactStages plans;
  for (size_t p = 0; p < candidate.pipelines.size(); ++p) {
    const PipelineCandidate& pipeline = candidate.pipelines[p];
    PipelinePlan& plan = plans.emplace_back();
    plan.microbatches = static_cast<int>(pipeline.microbatches);
    const std::vector<CutBytes> cuts = places_.cuts(pipeline);
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const std::optional<StageSolution>& solved = solution(pipeline, s);
      if (!solved) return std::nullopt;
      PipelineStage stage{pipeline.stages[s], solved->option, 1, plan.microbatches};
      const ExtraBytes more = extra.empty() ? ExtraBytes{} : extra[p][s];
      const auto room = [&](Bytes beside) {
        return places_.room(stage.option, stage.range, plan.microbatches, is_alone, beside);
      };
      stage.room = room({});
      if (is_whole_ || more.is_whole) stage.option.weights = {};
      // A part of it may grow with the in-flight count.
      if (more.bytes > Bytes{})
        stage.room = std::max(std::min(stage.room, more.in_flight / 2), room(more.bytes));
      plan.stages.push_back(stage);
      if (s == 0) continue;
      const CutBytes& cut = cuts[at(stage.range.begin - 1)];
      const int from = devices[p][s - 1].back(), to = devices[p][s].front();
      const std::optional<LinkCurve> up = link_of(places_.topology(), from, to);
      const std::optional<LinkCurve> down = link_of(places_.topology(), to, from);
      if (!up || !down) return std::nullopt;
      plan.boundaries.push_back({occupied(*up, cut.up), occupied(*down, cut.down), up->latency});
    }
    const std::optional<Nanoseconds> exchange = places_.exchange(pipeline.stages);
    if (!exchange) return std::nullopt;
    plan.exchange = *exchange;
  }
  return plans;
}

std::optional<ExactStages> CandidateTrials::exact_stages(const PlanCandidate& candidate,
                                                         const Extra& extra) {
  std::optional<ExactStages> plans = stages(candidate, extra);
  if (!plans) return plans;
  for (const PipelinePlan& plan : *plans)
    if (std::ranges::min(plan.stages, {}, &PipelineStage::room).room < 1) return std::nullopt;
  return plans;
}

Nanoseconds CandidateTrials::time_of(const PlanCandidate& candidate,
                                     const std::vector<PipelinePlan>& plans,
                                     int timings) const {
  Nanoseconds most;
  for (size_t p = 0; p < plans.size(); ++p)
    if (is_first_identical(plans, p)) most = std::max(most, turns_of(plans[p], timings).step);
  return most + syncs_after(places_, candidate, plans);
}

Pipeline CandidateTrials::to_pipeline(const PipelineCandidate& candidate,
                                      const std::vector<std::vector<int>>& devices,
                                      const PipelineTurns& turns) {
  const auto shares = [&](size_t s) {  // on the first axis
    return shares_of_rows(places_.mesh(candidate.stages[s]),
                          solution(candidate, s)->stage.mesh.shape[0]);
  };
  Pipeline pipeline;
  pipeline.microbatches = cut_into_microbatches(apportion(places_.rows_of(candidate), shares(0)),
                                                candidate.microbatches);
  // Stages for which the defaults are as good need no entries.
  std::vector<std::pair<const StageQuery, bool>*> missing;
  for (size_t s = 0; s < candidate.stages.size(); ++s)
    if (const auto [found, is_new] = defaults_suffice_.try_emplace(places_.query(candidate, s));
        is_new)
      missing.push_back(&*found);
  for_each_in_parallel(missing.size(), [&](size_t i) {
    missing[i]->second = synthesis_.defaults_suffice(missing[i]->first);
  });
  const PreparedStages& known = synthesis_.stages();
  for (size_t s = 0; s < candidate.stages.size(); ++s) {
    const StageSolution& solved = *solution(candidate, s);
    Stage stage = solved.stage;
    if (defaults_suffice_.at(places_.query(candidate, s)))
      for (Choices* said : {&stage.placements, &stage.batch, &stage.ops, &stage.updates})
        said->clear();
    stage.mesh.devices = names_of(request_.cluster, devices[s]);
    if (s == 0 && !solved.by_rows)
      for (Microbatch& microbatch : pipeline.microbatches) microbatch.lengths.clear();
    const int32_t first = places_.layers[at(candidate.stages[s].begin)].begin;
    if (s > 0) stage.first = known.names()[at(known.positions().sequence[at(first)])];
    if (s > 0 && solved.by_rows) stage.rows = shares(s);
    pipeline.stages.push_back(std::move(stage));
  }
  if (candidate.stages.size() > 1) {
    pipeline.schedule = "h1f1b";
    pipeline.in_flight.assign(turns.in_flight.begin(), turns.in_flight.end());
    if (std::ranges::max(turns.deferred_weights) > 0)
      pipeline.deferred_weights.assign(turns.deferred_weights.begin(),
                                       turns.deferred_weights.end());
  }
  return pipeline;
}

std::optional<CandidateTrial> CandidateTrials::trial(const PlanCandidate& candidate,
                                                     const Extra& extra) {
  std::optional<ExactStages> plans = exact_stages(candidate, extra);
  if (!plans) return std::nullopt;
  CandidateTrial trial{std::move(*plans), {}, empty_plan(request_), {}, {}};
  const PlanDevices devices = places_.devices_of(candidate);
  for (size_t p = 0; p < candidate.pipelines.size(); ++p) {
    trial.turns.push_back(turns_of(trial.pipelines[p]));
    trial.plan.pipelines.push_back(to_pipeline(candidate.pipelines[p], devices[p], trial.turns[p]));
  }
  return trial;
}

// Lowers the micro-batches of warm-up, as many again, and the drain. Lowers all if they are few, or
// pipelines differ.
void CandidateTrials::lower(CandidateTrial& trial) const {
  const std::vector<PipelinePlan>& all = trial.pipelines;
  const bool are_identical = std::ranges::count(all, all[0]) == std::ssize(all);
  const int64_t count = std::ssize(trial.plan.pipelines.front().microbatches);
  const int64_t few = 3 * trial.turns[0].in_flight[0] + kFull;
  const int64_t many = few * (all.size() > 1 ? kManyTimesOfSeveral : kManyTimes);
  Plan some = trial.plan;
  if (are_identical && count > many) {
    some.global_batch = 0;
    for (Pipeline& pipeline : some.pipelines) {
      pipeline.microbatches.resize(at(few));
      for (const Microbatch& each : pipeline.microbatches) some.global_batch += each.rows;
    }
  }
  trial.program = medley::lower(synthesis_.stages(), some, request_.cluster, {.hash_plan = false});
}

void CandidateTrials::simulate(CandidateTrial& trial) const {
  trial.step = simulated_step(trial, *request_.costs);
  if (request_.extra_cost) *trial.step += request_.extra_cost(trial.program, *trial.step);
}

}  // namespace medley
