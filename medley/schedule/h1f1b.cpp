#include "medley/schedule/h1f1b.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/schedule/best_counts.h"
#include "medley/schedule/counts.h"
#include "medley/schedule/period.h"
#include "medley/schedule/stage_ends.h"

namespace medley {
namespace {

Nanoseconds slowest_stage(const PipelineTimes& times) {
  Nanoseconds slowest;
  for (const MicrobatchTimes& size : times.sizes)
    for (const StageTimes& s : size.stages) slowest = std::max(slowest, s.forward + s.backward);
  return slowest;
}

// Returns counts from the last stage backwards; growth(boundary) is d.
template <typename Growth>
std::vector<int> grow(const PipelineTimes& times, Growth growth) {
  std::vector<int> counts(times.num_stages(), 1);
  for (size_t b = counts.size() - 1; b-- > 0;)
    counts[b] = std::min(times.num_microbatches(), counts[b + 1] + growth(b));
  return counts;
}

// Returns the counts with one more or fewer on a stage. Earlier stages have at least as many, later
// ones at most. Returns nullopt beyond `room`.
std::optional<std::vector<int>> moved(std::vector<int> counts,
                                      size_t stage,
                                      int change,
                                      const std::vector<int>& room) {
  counts[stage] += change;
  if (counts[stage] < 1) return std::nullopt;
  for (size_t i = 0; i < stage; ++i) counts[i] = std::max(counts[i], counts[stage]);
  for (size_t i = stage + 1; i < counts.size(); ++i) counts[i] = std::min(counts[i], counts[stage]);
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > room[i]) return std::nullopt;
  return counts;
}

}  // namespace

int ideal_growth(Nanoseconds round_trip, Nanoseconds t_max) {
  if (round_trip.value <= 0) return 1;
  constexpr int64_t kMany = 1 << 20;
  if (t_max.value <= 0) return kMany;
  return static_cast<int>(std::min(kMany, 1 + (round_trip.value + t_max.value - 1) / t_max.value));
}

int published_growth(Nanoseconds c, Nanoseconds t_max, bool same_pool) {
  if (same_pool || c * 10 < t_max) return 1;
  return c * 2 < t_max ? 2 : 3;
}

std::vector<int> ideal_in_flight(const ScheduleRequest& request, std::optional<Nanoseconds> t_max) {
  const Nanoseconds slowest = t_max.value_or(slowest_stage(request.times));
  return grow(request.times, [&](size_t b) {
    Nanoseconds round_trip;
    for (const MicrobatchTimes& size : request.times.sizes)
      round_trip = std::max(round_trip, size.boundaries[b].round_trip());
    return ideal_growth(round_trip, slowest);
  });
}

std::vector<int> published_in_flight(const ScheduleRequest& request,
                                     std::optional<Nanoseconds> t_max) {
  const Nanoseconds slowest = t_max.value_or(slowest_stage(request.times));
  return grow(request.times, [&](size_t b) {
    Nanoseconds c;
    for (const MicrobatchTimes& size : request.times.sizes)
      c = std::max(c, size.boundaries[b].forward + size.boundaries[b].latency);
    const std::vector<int>& pools = request.pools;
    return published_growth(c, slowest, !pools.empty() && pools[b] == pools[b + 1]);
  });
}

InFlight h1f1b(const ScheduleRequest& request, int max_timings) {
  const int stages = static_cast<int>(request.times.num_stages());
  const int microbatches = request.times.num_microbatches();
  std::vector<int> room(at(stages), microbatches);
  room = capped(room, request.max_in_flight);
  std::vector<int> widest = room;
  widest.back() = 1;

  BestCounts best(
      [&](const std::vector<int>& counts) { return time_ends(counts, request.times).finish; });
  std::string_view best_rule;
  const auto consider = [&](std::string_view rule, const std::vector<int>& wanted) {
    const bool better = best.consider(capped(wanted, room));
    if (better) best_rule = rule;
    return better;
  };
  consider("ideal", ideal_in_flight(request));
  consider("published", published_in_flight(request));
  consider("memory", counts_within(room, request.times));
  consider("1f1b", one_f_one_b(stages, microbatches));
  consider("eager-1f1b", eager_one_f_one_b(stages, microbatches));
  consider("widest", widest);

  // Tries one more or fewer on some stage, with the changes on neighbours that it needs.
  int timings = 0;
  for (bool better = true; better;) {
    better = false;
    for (size_t stage = 0; stage < room.size(); ++stage)
      for (const int change : {-1, 1}) {
        const std::optional<std::vector<int>> counts = moved(best.counts(), stage, change, room);
        if (counts && timings++ < max_timings) better |= consider("search", *counts);
      }
  }
  return {best.counts(), best_rule, best.finish()};
}

}  // namespace medley
