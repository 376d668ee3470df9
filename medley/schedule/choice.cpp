#include "medley/schedule/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "medley/base/error.h"
#include "medley/schedule/schedules.h"

namespace medley {
namespace {

using Expected = std::optional<std::string>;

std::vector<int> held_to(int most, const std::vector<int64_t>& counts) {
  std::vector<int> held;
  for (const int64_t count : counts)
    held.push_back(static_cast<int>(std::min<int64_t>(count, most)));
  return held;
}

Expected expected_in_flight(const ScheduleChoice& choice, PipelineSize size) {
  const std::vector<int64_t>& counts = choice.in_flight;
  if (counts.empty() && size.stages > 1 && !find_schedule(choice.schedule).planned)
    return fmt::format("a count for each stage: those of {} depend on times", choice.schedule);
  if (!std::ranges::is_sorted(counts, std::greater()) || (!counts.empty() && counts.back() < 1))
    return "positive counts that do not grow along the pipeline";
  return std::nullopt;
}

PipelineOrder of_in_flight(const ScheduleChoice& choice, PipelineSize size, PipelineOrder) {
  return order_calls(held_to(size.microbatches, choice.in_flight), size.microbatches);
}

// No stage waits for results of the first stage.
Expected expected_deferred(const ScheduleChoice& choice, PipelineSize) {
  const std::vector<int64_t>& counts = choice.deferred_weights;
  if (counts.empty() || (counts[0] == 0 && std::ranges::min(counts) >= 0)) return std::nullopt;
  return "0 for the first stage, and none below it";
}

PipelineOrder of_deferred(const ScheduleChoice& choice, PipelineSize size, PipelineOrder order) {
  return with_deferred_weights(std::move(order),
                               held_to(size.microbatches, choice.deferred_weights));
}

Expected expected_interleave(const ScheduleChoice& choice, PipelineSize size) {
  if (choice.interleave < 1 || choice.interleave > size.microbatches)
    return fmt::format("1 to {}, the micro-batches", size.microbatches);
  if (choice.interleave == 1) return std::nullopt;
  if (size.stages > 1)
    return fmt::format(
        "1: the pipeline has {} stages, and only one alone works on several micro-batches at once",
        size.stages);
  if (choice.in_flight.empty()) return std::nullopt;
  return "1 beside in_flight: as many are in flight as go at once";
}

PipelineOrder of_interleave(const ScheduleChoice& choice, PipelineSize size, PipelineOrder) {
  return {order_interleaved(static_cast<int>(choice.interleave), size.microbatches)};
}

}  // namespace

const std::vector<ScheduleField>& schedule_fields() {
  using Choice = ScheduleChoice;
  static const std::vector<ScheduleField> kTable = {
      {"in_flight", 1, &Choice::in_flight, nullptr, expected_in_flight, of_in_flight},
      {"deferred_weights", 0, &Choice::deferred_weights, nullptr, expected_deferred, of_deferred},
      {"interleave", 1, nullptr, &Choice::interleave, expected_interleave, of_interleave},
  };
  return kTable;
}

bool is_default(const ScheduleChoice& choice, const ScheduleField& field) {
  return field.counts ? (choice.*field.counts).empty()
                      : choice.*field.number == ScheduleChoice().*field.number;
}

std::optional<ScheduleFault> find_fault(const ScheduleChoice& choice, PipelineSize size) {
  for (const ScheduleField& field : schedule_fields()) {
    const std::vector<int64_t> values =
        field.counts ? choice.*field.counts : std::vector{choice.*field.number};
    const auto stages = static_cast<size_t>(size.stages);
    if (field.counts && !values.empty() && values.size() != stages)
      return ScheduleFault{field.key,
                           fmt::format("{} counts", values.size()),
                           fmt::format("{}, one for each stage", stages)};
    if (auto expected = field.expected(choice, size))
      return ScheduleFault{field.key,
                           values.empty() ? "none"
                           : field.counts ? fmt::format("[{}]", fmt::join(values, ", "))
                                          : std::to_string(values[0]),
                           std::move(*expected)};
  }
  return std::nullopt;
}

PipelineOrder order_of(const ScheduleChoice& choice, PipelineSize size) {
  const Schedule& schedule = find_schedule(choice.schedule);
  PipelineOrder order = schedule.planned ? schedule.planned(size.stages, size.microbatches)
                                         : order_calls({1}, size.microbatches);
  for (const ScheduleField& field : schedule_fields())
    if (!is_default(choice, field)) order = field.make(choice, size, std::move(order));
  MEDLEY_CHECK_EQ(order.size(), static_cast<size_t>(size.stages));
  return order;
}

}  // namespace medley
