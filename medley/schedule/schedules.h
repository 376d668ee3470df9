#pragma once

// The schedules, by their names in plans.

#include <string_view>

#include "medley/schedule/timer.h"

namespace medley {

// Every schedule obeys the limits of the request by delaying calls. peak_in_flight() gives the
// resulting counts.
struct Schedule {
  std::string_view name;
  std::string_view help;
  PipelineOrder (*order)(const ScheduleRequest& request);
  // Returns the order without limits, for plans that name it; nullptr if it depends on times.
  PipelineOrder (*planned)(int stages, int microbatches);
};
const std::vector<Schedule>& schedules();

// Throws Error(kCaller) for an unknown name and lists the known ones.
const Schedule& find_schedule(std::string_view name);

}  // namespace medley
