// How long a candidate takes before it is simulated: by the timer, and what is summed once a step.

#include <algorithm>
#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/pipelines/candidates.h"
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

// By the timer.
Nanoseconds CandidateSet::time_of(const PlanCandidate& candidate,
                                  const std::vector<PipelinePlan>& plans) const {
  Nanoseconds most;
  for (const PipelinePlan& plan : plans)
    most = std::max(most,
                    h1f1b(schedule_request(plan)).finish +
                        std::max(plan.stages[0].option.update, plan.exchange));
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
    Bytes sum;
    for (int l = std::max(a.begin, b.begin); l < std::min(a.end, b.end); ++l)
      sum += gradients_[at(l)];
    return sum;
  };
  Nanoseconds most;
  for (size_t p = 0; p < plans.size(); ++p) {
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
