#include "medley/schedule/schedules.h"

#include <fmt/format.h>

#include "medley/base/error.h"
#include "medley/schedule/eager_one_f_one_b.h"
#include "medley/schedule/gpipe.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/one_f_one_b.h"

namespace medley {
namespace {

using Counts = std::vector<int> (*)(int stages, int microbatches);

// The order of counts that depend on nothing but these two numbers, held to the limits.
template <Counts kCounts>
PipelineOrder held(const ScheduleRequest& request) {
  const int microbatches = request.times.num_microbatches();
  const std::vector<int> counts =
      kCounts(static_cast<int>(request.times.num_stages()), microbatches);
  return order_calls(capped(counts, request.max_in_flight), microbatches);
}

PipelineOrder h1f1b_order(const ScheduleRequest& request) {
  return order_calls(h1f1b(request).counts, request.times.num_microbatches());
}

}  // namespace

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> kTable = {
      {"1f1b", "one forward, one backward; transfers are waited for", held<one_f_one_b>},
      {"eager-1f1b", "1f1b with one more in flight per boundary", held<eager_one_f_one_b>},
      {"gpipe", "all forwards, then all backwards", held<gpipe>},
      {"h1f1b", "in flight what hides each boundary's transfers", h1f1b_order},
  };
  return kTable;
}

const Schedule& find_schedule(std::string_view name) {
  std::string names;
  for (const Schedule& schedule : schedules()) {
    if (schedule.name == name) return schedule;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", schedule.name);
  }
  throw Error(Blame::kCaller, fmt::format("schedule: found {}, expected one of {}", name, names));
}

}  // namespace medley
