#include "medley/schedule/schedules.h"

#include <fmt/format.h>

#include "medley/base/error.h"
#include "medley/schedule/counts.h"
#include "medley/schedule/h1f1b.h"

namespace medley {
namespace {

// Returns orders whose counts depend only on these two numbers, with and without limits.
template <std::vector<int> (*kCounts)(int stages, int microbatches)>
Schedule of_counts(std::string_view name, std::string_view help) {
  return {name,
          help,
          [](const ScheduleRequest& request) {
            const int stages = static_cast<int>(request.times.num_stages());
            const int microbatches = request.times.num_microbatches();
            return order_calls(capped(kCounts(stages, microbatches), request.max_in_flight),
                               microbatches);
          },
          [](int stages, int microbatches) {
            return order_calls(kCounts(stages, microbatches), microbatches);
          }};
}

PipelineOrder h1f1b_order(const ScheduleRequest& request) {
  return order_calls(h1f1b(request).counts, request.times.num_microbatches());
}

}  // namespace

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> kTable = {
      of_counts<one_f_one_b>("1f1b", "one forward, one backward; transfers are waited for"),
      of_counts<eager_one_f_one_b>("eager-1f1b", "1f1b with one more in flight per boundary"),
      of_counts<gpipe>("gpipe", "all forwards, then all backwards"),
      {"h1f1b", "in flight what hides each boundary's transfers", h1f1b_order, nullptr},
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
