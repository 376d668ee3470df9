#include "medley/candidates/candidates.h"

#include <algorithm>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/candidates/memory_ladder.h"
#include "medley/candidates/port_bounds.h"
#include "medley/synthesis/shorten.h"

namespace medley {
namespace {

constexpr double kClearlySlower = 1.02;  // factor between timed steps
constexpr size_t kTriedAtOnce = 2;
constexpr int kMaxLosers = 2;  // evaluations without success before the search stops

}  // namespace

CandidateSet::CandidateSet(const Request& request,
                           const std::vector<DevicePool>& pools,
                           StageSynthesis& synthesis)
    : request_(request),
      synthesis_(synthesis),
      places_(request, pools, synthesis.layers().layers),
      trials_(places_, synthesis) {}

std::vector<std::optional<Nanoseconds>> CandidateSet::add(
    const std::vector<PlanCandidate>& candidates) {
  struct Placed {
    PlanCandidate candidate;
    size_t number;
    std::optional<Nanoseconds> time;
  };
  std::vector<Placed> all;
  for (size_t i = 0; i < candidates.size(); ++i) {
    all.push_back({candidates[i], i, {}});
    if (std::optional<PlanCandidate> other = places_.placed_otherwise(candidates[i]))
      all.push_back({std::move(*other), i, {}});
  }
  trials_.solve(candidates);  // all solutions are then cached
  for_each_in_parallel(all.size(), [&](size_t i) { all[i].time = time_of(all[i].candidate); });
  std::vector<std::optional<Nanoseconds>> times(candidates.size());
  for (Placed& placed : all) {
    if (!placed.time) {
      dropped_ |= loses_by_ports(places_, placed.candidate);
      continue;
    }
    std::optional<Nanoseconds>& least = times[placed.number];
    least = std::min(least.value_or(*placed.time), *placed.time);
    const auto as_long = std::ranges::equal_range(timed_, *placed.time, {}, &Timed::time);
    if (std::ranges::find(as_long, placed.candidate, &Timed::candidate) == as_long.end())
      timed_.insert(as_long.end(), {*placed.time, std::move(placed.candidate)});
  }
  return times;
}

std::optional<Nanoseconds> CandidateSet::time_of(const PlanCandidate& candidate) {
  if (loses_by_ports(places_, candidate)) return std::nullopt;
  const std::optional<ExactStages> plans = trials_.exact_stages(candidate);
  if (!plans) return std::nullopt;
  const Nanoseconds time = trials_.time_of(candidate, *plans);
  // The timer ignores ports shared by several pipelines.
  return plans->size() > 1 ? std::max(time, least_step(places_, candidate)) : time;
}

void CandidateSet::add_recomputing(std::vector<PlanCandidate> candidates) {
  for (const std::string_view how : {kRecompute[0], kRecompute[2], kRecompute[1]}) {
    if (how != kRecompute[0])
      std::erase_if(candidates, [&](PlanCandidate& candidate) {
        return !recompute_more(trials_, candidate, how);
      });
    add(candidates);
  }
}

void CandidateSet::evaluate(PlanCandidate candidate, std::optional<CandidateTrial> trial) {
  const auto why = why_left_out(request_, [&] {
    if (!fit(trials_, candidate, trial, best_step_, misfit_)) return;
    best_ = std::move(trial->plan);
    best_candidate_ = std::move(candidate);
    best_step_ = trial->step;
  });
  if (why && misfit_.empty()) misfit_ = *why;
}

// Returns whether the timer excludes a step shorter than the known one.
bool CandidateSet::is_too_slow(Nanoseconds time) const {
  return request_.faster_than && time / *request_.faster_than > kTimerOff;
}

// Lowers and simulates the next ones that take hardly longer than the fastest, on all cores.
void CandidateSet::try_next(std::vector<std::optional<CandidateTrial>>& trials) {
  const size_t begin = trials.size();
  const size_t end = std::min(timed_.size(), begin + kTriedAtOnce);
  for (size_t i = begin; i < end; ++i) {
    const bool is_slower = timed_[i].time / timed_[0].time > kClearlySlower;
    if (request_.faster_than ? is_too_slow(timed_[i].time) : is_slower) break;
    std::optional<CandidateTrial>& made = trials.emplace_back();
    why_left_out(request_, [&] { made = trials_.trial(timed_[i].candidate); });
  }
  // evaluate() reports the reason if one is skipped.
  for_each_in_parallel(trials.size() - begin, [&](size_t i) {
    std::optional<CandidateTrial>& trial = trials[begin + i];
    if (!trial) return;
    const auto why = why_left_out(request_, [&] {
      trials_.lower(*trial);
      trials_.simulate(*trial);
    });
    if (why) trial.reset();
  });
}

void CandidateSet::choose(int most, const std::function<void(int)>& starting) {
  const auto is_another_time = [&](size_t i) {
    return i == 0 || timed_[i].time != timed_[i - 1].time;
  };
  if (starting) starting(0);
  std::vector<std::optional<CandidateTrial>> trials;  // first ones
  int times = 0;                                      // evaluated
  for (size_t i = 0; i < timed_.size(); ++i) {
    const auto& [time, candidate] = timed_[i];
    if (is_another_time(i)) {
      if (is_too_slow(time)) break;
      if (best_ && times >= most) break;
      // If several are slower than the timer predicts, so are the next.
      if (best_ && times >= kMaxLosers && request_.faster_than &&
          best_step_ >= request_.faster_than)
        break;
      // The timer misses some waits, so it rarely exceeds the simulator.
      if (best_ && time >= *best_step_) break;
      if (starting && times > 0) starting(times);
      ++times;
    }
    if (i == trials.size()) try_next(trials);
    evaluate(candidate, i < trials.size() ? std::move(trials[i]) : std::nullopt);
  }
  if (!best_) return;
  const std::optional<PlanCandidate> other = places_.placed_otherwise(best_candidate_);
  if (other && !loses_by_ports(places_, *other)) evaluate(*other);
}

void CandidateSet::join_axes() {
  if (!best_) return;
  PlanCandidate joined = best_candidate_;
  std::vector<std::pair<size_t, size_t>> ways;  // pipeline, stage
  std::vector<PlanCandidate> candidates;
  for (size_t p = 0; p < joined.pipelines.size(); ++p) {
    const PipelineCandidate& pipeline = joined.pipelines[p];
    for (size_t s = 0; s < pipeline.stages.size(); ++s)
      if (const auto config =
              synthesis_.on_nodes(places_.query(pipeline, s).mesh, pipeline.configs[s])) {
        ways.emplace_back(p, s);
        candidates.push_back({{pipeline}});
        candidates.back().pipelines.front().configs[s] = *config;
      }
  }
  trials_.solve(candidates);
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto& [p, s] = ways[i];
    PipelineCandidate& pipeline = joined.pipelines[p];
    const PipelineCandidate& with = candidates[i].pipelines.front();
    const auto &now = trials_.solution(pipeline, s), &other = trials_.solution(with, s);
    const auto step = [&](const StageOption& option) {
      return (option.forward + option.backward) * pipeline.microbatches + option.update;
    };
    if (other && step(other->option) < step(now->option)) pipeline.configs[s] = with.configs[s];
  }
  if (joined != best_candidate_) evaluate(joined);
}

Outcome CandidateSet::best() const {
  if (!best_ && (timed_.empty() ? dropped_ : is_too_slow(timed_[0].time)))
    return Infeasible{"none is predicted to be faster than what is known"};
  if (!best_ && !misfit_.empty()) return Infeasible{misfit_};
  if (!best_ && !synthesis_.failure().empty()) return Infeasible{synthesis_.failure()};
  if (!best_) return Infeasible{"no chain of stages has memory for a micro-batch"};
  Plan plan = *best_;
  std::vector<Stage*> stages;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) stages.push_back(&stage);
  for_each_in_parallel(stages.size(),
                       [&](size_t s) { shorten(*stages[s], synthesis_.stages().names()); });
  return plan;
}

}  // namespace medley
