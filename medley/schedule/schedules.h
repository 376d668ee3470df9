#pragma once

// The schedules, by the names that plans use.

#include <string_view>

#include "medley/schedule/timer.h"

namespace medley {

// Every schedule is held to the limits of the request: what it would have in flight beyond them
// waits. peak_in_flight() tells the counts from the order.
struct Schedule {
  std::string_view name;
  std::string_view help;
  PipelineOrder (*order)(const ScheduleRequest& request);
  // The order without limits, of plans that name it; nullptr where that depends on times.
  PipelineOrder (*planned)(int stages, int microbatches);
};
const std::vector<Schedule>& schedules();

// Throws Error(kCaller) for a name that is not in the table, listing those that are.
const Schedule& find_schedule(std::string_view name);

}  // namespace medley
