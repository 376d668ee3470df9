#pragma once

// How a plan says in which order the stages of a pipeline make their calls, and the order that it
// means: one list of calls and parts of calls for each stage (call_order.h), from which the
// program, the timer and all who follow them work. Nothing else reads these fields: plans are
// parsed, printed and checked by the rows of schedule_fields().

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/schedule/call_order.h"

namespace medley {

struct ScheduleChoice {
  std::string schedule = "1f1b";
  // Micro-batches that each stage has in flight at most, not growing along the pipeline. Empty: as
  // many as the schedule says where that depends on no times.
  std::vector<int64_t> in_flight{};
  // Of how many micro-batches at most each stage has gone backward without the gradients of its
  // weights, for which no other stage waits. Empty: 0, they are made with the rest.
  std::vector<int64_t> late_weights{};
  // Of a single stage: so many micro-batches go forward, and so many backward, at once.
  int64_t at_once = 1;
  bool operator==(const ScheduleChoice&) const = default;
};

// The sizes of a pipeline.
struct PipelineSize {
  int stages = 1, microbatches = 1;
};

// A field beside the name: a count for each stage, or one number.
struct ScheduleField {
  std::string_view key;  // in plans
  int64_t least;
  std::vector<int64_t> ScheduleChoice::*counts;  // empty by default; or null, then
  int64_t ScheduleChoice::*number;
  // Returns what is expected instead of what the field has; nothing if it suits. Requires: as many
  // counts as stages, or none.
  std::optional<std::string> (*expected)(const ScheduleChoice& choice, PipelineSize size);
  // Returns the order that the field makes of the one that rows before it have made. Called if the
  // field has another value than by default.
  PipelineOrder (*make)(const ScheduleChoice& choice, PipelineSize size, PipelineOrder order);
};
const std::vector<ScheduleField>& schedule_fields();
bool is_default(const ScheduleChoice& choice, const ScheduleField& field);

// A field that does not suit a pipeline.
struct ScheduleFault {
  std::string_view key;
  std::string found, expected;
};
std::optional<ScheduleFault> find_fault(const ScheduleChoice& choice, PipelineSize size);

// Returns the order. Requires: there is no fault.
PipelineOrder order_of(const ScheduleChoice& choice, PipelineSize size);

}  // namespace medley
