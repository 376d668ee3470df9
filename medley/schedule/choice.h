#pragma once

// Fields of a plan that select the order of calls, and that order: a list of calls and parts of
// calls per stage (call_order.h). Program, timer and all other readers use this order. Plans are
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
  // Most micro-batches in flight on each stage, not growing along the pipeline. Empty: those of the
  // schedule, if they are independent of times.
  std::vector<int64_t> in_flight{};
  // Most micro-batches on each stage with deferred weight gradients, which no other stage reads.
  // Empty: 0, computed in the backward call.
  std::vector<int64_t> deferred_weights{};
  // Single stage only: number of micro-batches interleaved in a forward or backward.
  int64_t interleave = 1;
  bool operator==(const ScheduleChoice&) const = default;
};

// The sizes of a pipeline.
struct PipelineSize {
  int stages = 1, microbatches = 1;
};

// A field besides the name: a count for each stage, or one number.
struct ScheduleField {
  std::string_view key;  // in plans
  int64_t least;
  std::vector<int64_t> ScheduleChoice::*counts;  // empty by default; or null, then:
  int64_t ScheduleChoice::*number;
  // Returns the expectation that the field violates; nullopt if it is valid. Requires: as many
  // counts as stages, or none.
  std::optional<std::string> (*expected)(const ScheduleChoice& choice, PipelineSize size);
  // Returns the order after this field, from that of the rows before it. Called only for values
  // other than the default.
  PipelineOrder (*make)(const ScheduleChoice& choice, PipelineSize size, PipelineOrder order);
};
const std::vector<ScheduleField>& schedule_fields();
bool is_default(const ScheduleChoice& choice, const ScheduleField& field);

// An invalid field for a pipeline.
struct ScheduleFault {
  std::string_view key;
  std::string found, expected;
};
std::optional<ScheduleFault> find_fault(const ScheduleChoice& choice, PipelineSize size);

// Returns the order. Requires: there is no fault.
PipelineOrder order_of(const ScheduleChoice& choice, PipelineSize size);

}  // namespace medley
