#include "medley/cli/simulate_schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/cli/stage_names.h"
#include "medley/cli/table.h"
#include "medley/lower/lower.h"
#include "medley/schedule/schedules.h"
#include "medley/sim/schedule_request.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

struct ScheduleRow {
  std::string schedule;
  std::vector<int> in_flight;  // [stage of the program]
  Nanoseconds step;
  double bubble = 0;
  std::vector<int64_t> memory;   // [stage] largest need of its devices
  std::vector<int64_t> lacking;  // [stage] largest lack of its devices
};

// Simulates `plan`, which has that schedule.
ScheduleRow simulate_with(const GraphAnalysis& analysis,
                          const Plan& plan,
                          const CostModel& costs,
                          std::string_view schedule) {
  const Program program = lower(analysis, plan, costs.cluster());
  const Simulation simulation = simulate(program, costs, {.memory = true});
  ScheduleRow row;
  row.schedule = schedule;
  row.in_flight = in_flight(program);
  row.step = simulation.step;
  row.bubble = simulation.bubble();
  row.memory.resize(program.stages.size());
  row.lacking.resize(program.stages.size());
  for (const SimulatedDevice& device : simulation.devices) {
    const auto has = static_cast<int64_t>(costs.cluster().kind(device.device).memory_bytes);
    const auto stage = at(device.stage);
    row.memory[stage] = std::max(row.memory[stage], device.peak_bytes);
    row.lacking[stage] = std::max(row.lacking[stage], device.peak_bytes - has);
  }
  return row;
}

// Returns the inputs for choosing schedules of pipelines with several stages, else nothing.
std::vector<std::optional<ScheduleRequest>> requests_of(const GraphAnalysis& analysis,
                                                        const Plan& plan,
                                                        const CostModel& costs) {
  const Program program = lower(analysis, plan, costs.cluster());
  const Simulation simulation = simulate(program, costs, {.memory = true});
  std::vector<std::optional<ScheduleRequest>> requests(plan.pipelines.size());
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    if (plan.pipelines[p].stages.size() > 1)
      requests[p] = schedule_request(program, static_cast<int>(p), costs, simulation);
  return requests;
}

Plan with_schedule(Plan plan,
                   const Schedule& schedule,
                   const std::vector<std::optional<ScheduleRequest>>& requests) {
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    if (!requests[p]) continue;
    const std::vector<int> counts = peak_in_flight(schedule.order(*requests[p]));
    plan.pipelines[p].schedule = schedule.name;
    plan.pipelines[p].in_flight.assign(counts.begin(), counts.end());
  }
  return plan;
}

bool fits(const ScheduleRow& row) {
  return std::all_of(row.lacking.begin(), row.lacking.end(), [](int64_t b) { return b == 0; });
}

// Returns "3 1", or "3 1 | 2 1" for several pipelines.
std::string by_pipeline(const Plan& plan,
                        const std::vector<std::string>& of_stages,
                        std::string_view between) {
  std::string text;
  auto next = of_stages.begin();
  for (const Pipeline& pipeline : plan.pipelines) {
    const auto end = next + static_cast<std::ptrdiff_t>(pipeline.stages.size());
    text += fmt::format("{}{}", text.empty() ? "" : " | ", fmt::join(next, end, between));
    next = end;
  }
  return text;
}

std::string to_text(const Plan& plan, const std::vector<ScheduleRow>& rows) {
  Nanoseconds best = rows[0].step;
  for (const ScheduleRow& row : rows) best = std::min(best, row.step);
  const std::vector<std::string> names = stage_names(plan);
  Table table("schedule|in flight|step|vs best|bubble|memory by stage");
  std::string lacking;
  for (const ScheduleRow& row : rows) {
    std::vector<std::string> memory, counts;
    for (int64_t bytes : row.memory) memory.push_back(to_string(Bytes{bytes}));
    for (int count : row.in_flight) counts.push_back(std::to_string(count));
    table.add({row.schedule,
               by_pipeline(plan, counts, " "),
               to_string(row.step),
               fmt::format("{:.2f}x", row.step / best),
               percent(row.bubble),
               by_pipeline(plan, memory, ", ")});
    for (size_t s = 0; s < row.lacking.size(); ++s)
      if (row.lacking[s] > 0)
        lacking += fmt::format("{} does not fit: stage {} lacks {}\n",
                               row.schedule,
                               names[s],
                               to_string(Bytes{row.lacking[s]}));
  }
  return table.text() + lacking;
}

Json to_json(const ScheduleRow& row) {
  return {{"schedule", row.schedule},
          {"in_flight", row.in_flight},
          {"step_nanoseconds", row.step.value},
          {"bubble_share", row.bubble},
          {"memory_bytes", row.memory},
          {"fits", fits(row)}};
}

}  // namespace

std::string simulate_schedules(const Graph& graph,
                               const Plan& plan,
                               const CostModel& costs,
                               const std::vector<std::string>& names,
                               bool json) {
  if (std::ranges::all_of(plan.pipelines,
                          [](const Pipeline& each) { return each.stages.size() < 2; }))
    throw Error(Blame::kCaller,
                "plan: pipelines: found 1 stage in each, expected several: schedules are for the "
                "stages of a pipeline");
  std::vector<const Schedule*> wanted;
  for (const std::string& name : names) {
    if (name != "all") wanted.push_back(&find_schedule(name));
    for (const Schedule& schedule : schedules())
      if (name == "all") wanted.push_back(&schedule);
  }
  const GraphAnalysis analysis = analyse(graph, plan, costs.cluster(), {});
  const std::vector<std::optional<ScheduleRequest>> requests = requests_of(analysis, plan, costs);
  std::vector<ScheduleRow> rows;
  for (const Schedule* schedule : wanted)
    rows.push_back(
        simulate_with(analysis, with_schedule(plan, *schedule, requests), costs, schedule->name));
  if (!json) return to_text(plan, rows);
  Json out = Json::array();
  for (const ScheduleRow& row : rows) out.push_back(to_json(row));
  return Json{{"schedules", out}}.dump(2) + "\n";
}

}  // namespace medley
