#pragma once

// What a schedule is chosen from.

#include "medley/schedule/timer.h"

namespace medley {

struct ScheduleRequest {
  PipelineTimes times;
  std::vector<int> max_in_flight;  // [stage], what memory has room for; empty: no limit
  std::vector<int> pools;          // [stage]; empty: each stage is one of its own
};

}  // namespace medley
