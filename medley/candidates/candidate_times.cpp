// How long a candidate takes before it is simulated: by the timer, and what is summed once a step.

#include <algorithm>
#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/candidates/candidates.h"
#include "medley/schedule/h1f1b.h"

namespace medley {

std::optional<Nanoseconds> CandidateSet::exchange(const std::vector<StageRange>& ranges) const {
  if (tied_.empty()) return Nanoseconds{};
  const std::vector<std::vector<int>> devices = lay_out(pools_, ranges);
  std::map<std::pair<int, int>, Nanoseconds> busy;  // [from pool, to pool]
  Nanoseconds most;
  for (const Tied& tied : tied_) {
    const auto reads = [&](size_t s) {
      const auto first = tied.layers.lower_bound(ranges[s].begin);
      return first != tied.layers.end() && *first < ranges[s].end;
    };
    for (size_t from = 0; from < ranges.size(); ++from)
      for (size_t to = 0; to < ranges.size(); ++to) {
        if (from == to || !reads(from) || !reads(to)) continue;
        const std::optional<Nanoseconds> time = exchange_time(
            link_of(request_.costs->topology(), devices[from][0], devices[to][0]), tied.bytes);
        if (!time) return std::nullopt;
        Nanoseconds& sum = busy[{ranges[from].pool, ranges[to].pool}];
        sum += *time;
        most = std::max(most, sum);
      }
  }
  return most;
}

std::optional<Nanoseconds> CandidateSet::add(const PlanCandidate& candidate) {
  return add(std::vector<PlanCandidate>{candidate})[0];
}

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
    if (std::optional<PlanCandidate> other = placed_otherwise(candidates[i]))
      all.push_back({std::move(*other), i, {}});
  }
  solve(candidates);  // so that there is no more to find
  for_each_in_parallel(all.size(), [&](size_t i) { all[i].time = time_of(all[i].candidate); });
  std::vector<std::optional<Nanoseconds>> times(candidates.size());
  for (Placed& placed : all) {
    if (!placed.time) {
      dropped_ |= loses_by_ports(placed.candidate);
      continue;
    }
    std::optional<Nanoseconds>& least = times[placed.number];
    least = std::min(least.value_or(*placed.time), *placed.time);
    keep_timed({*placed.time, std::move(placed.candidate)});
  }
  return times;
}

std::optional<Nanoseconds> CandidateSet::time_of(const PlanCandidate& candidate) {
  if (loses_by_ports(candidate)) return std::nullopt;
  const std::optional<std::vector<PipelinePlan>> plans = wholes(candidate);
  if (!plans) return std::nullopt;
  const Nanoseconds time = time_of(candidate, *plans);
  // The timer knows no port that several pipelines have.
  return plans->size() > 1 ? std::max(time, least_step(candidate)) : time;
}

void CandidateSet::keep_timed(Timed timed) {
  const auto as_long = std::ranges::equal_range(timed_, timed.time, {}, &Timed::time);
  if (std::ranges::find(as_long, timed.candidate, &Timed::candidate) == as_long.end())
    timed_.insert(as_long.end(), std::move(timed));
}

// By the timer.
Nanoseconds CandidateSet::time_of(const PlanCandidate& candidate,
                                  const std::vector<PipelinePlan>& plans,
                                  int timings) const {
  Nanoseconds most;
  for (size_t p = 0; p < plans.size(); ++p)
    if (is_first_alike(plans, p)) most = std::max(most, turns_of(plans[p], timings).step);
  return most + relays_after(candidate, plans);
}

// How long pipelines still sum gradients of layers once they are done, roughly: a stage sends and
// receives, of its layers, two parts in as many as there are pipelines to and from each other one,
// while the stages before it in its pipeline go backward.
Nanoseconds CandidateSet::relays_after(const PlanCandidate& candidate,
                                       const std::vector<PipelinePlan>& plans) const {
  if (plans.size() < 2) return {};
  const std::vector<std::vector<std::vector<int>>> devices = devices_of(candidate);
  const auto bytes_of_both = [&](const StageRange& a, const StageRange& b) {
    return bytes_of(gradients_, std::max(a.begin, b.begin), std::min(a.end, b.end));
  };
  Nanoseconds most;
  for (size_t p = 0; p < plans.size(); ++p) {
    // Those that are alike sum for as long.
    if (!is_first_alike(plans, p)) continue;
    Nanoseconds hidden;
    for (size_t s = 0; s < plans[p].stages.size(); ++s) {
      if (s > 0)
        hidden += plans[p].stages[s - 1].option.backward + plans[p].boundaries[s - 1].backward;
      Nanoseconds relay;
      for (size_t q = 0; q < plans.size(); ++q)
        for (size_t other = 0; q != p && other < plans[q].stages.size(); ++other) {
          const Bytes both = bytes_of_both(plans[p].stages[s].range, plans[q].stages[other].range);
          if (both <= Bytes{}) continue;
          const std::optional<LinkCurve> link =
              link_of(request_.costs->topology(), devices[p][s][0], devices[q][other][0]);
          if (!link) return kLongest;
          const StageRange& range = plans[p].stages[s].range;
          const int nodes = std::max(1, range.devices / pools_[at(range.pool)].per_node);
          relay += occupied(*link, {both.value * 2 / static_cast<int64_t>(plans.size()) / nodes});
        }
      most = std::max(most, relay - hidden);
    }
  }
  return most;
}

}  // namespace medley
