#include "medley/cli/simulate_schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/cli/table.h"
#include "medley/program/lower.h"
#include "medley/schedule/schedules.h"
#include "medley/sim/schedule_request.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

struct ScheduleRow {
  std::string schedule;
  std::vector<int> in_flight;  // [stage]
  Nanoseconds step;
  double bubble = 0;
  std::vector<int64_t> memory;   // [stage] the most that a device of it needs
  std::vector<int64_t> lacking;  // [stage] the most that one of them lacks
};

ScheduleRow simulate_with(const GraphAnalysis& analysis,
                          Plan plan,
                          const CostModel& costs,
                          const std::string& schedule,
                          const std::vector<int>& counts) {
  ScheduleRow row;
  row.schedule = schedule;
  row.in_flight = counts;
  Pipeline& pipeline = plan.pipelines[0];
  pipeline.schedule = schedule;
  pipeline.in_flight.assign(counts.begin(), counts.end());
  const Simulation simulation =
      simulate(lower(analysis, plan, costs.cluster()), costs, {.memory = true});
  row.step = simulation.step;
  row.bubble = simulation.bubble();
  row.memory.resize(pipeline.stages.size());
  row.lacking.resize(pipeline.stages.size());
  for (const SimulatedDevice& device : simulation.devices) {
    const auto has = static_cast<int64_t>(costs.cluster().kind(device.device).memory_bytes);
    const auto stage = at(device.stage);
    row.memory[stage] = std::max(row.memory[stage], device.peak_bytes);
    row.lacking[stage] = std::max(row.lacking[stage], device.peak_bytes - has);
  }
  return row;
}

bool fits(const ScheduleRow& row) {
  return std::all_of(row.lacking.begin(), row.lacking.end(), [](int64_t b) { return b == 0; });
}

std::string to_text(const std::vector<ScheduleRow>& rows) {
  Nanoseconds best = rows[0].step;
  for (const ScheduleRow& row : rows) best = std::min(best, row.step);
  Table table({"schedule", "in flight", "step", "vs best", "bubble", "memory by stage"});
  std::string lacking;
  for (const ScheduleRow& row : rows) {
    std::vector<std::string> memory;
    for (int64_t bytes : row.memory) memory.push_back(to_string(Bytes{bytes}));
    table.add({row.schedule,
               fmt::format("{}", fmt::join(row.in_flight, " ")),
               to_string(row.step),
               fmt::format("{:.2f}x", row.step / best),
               fmt::format("{:.1f} %", 100 * row.bubble),
               fmt::format("{}", fmt::join(memory, ", "))});
    for (size_t s = 0; s < row.lacking.size(); ++s)
      if (row.lacking[s] > 0)
        lacking += fmt::format("{} does not fit: stage {} lacks {}\n",
                               row.schedule,
                               s,
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
  if (plan.pipelines.size() > 1)
    throw Error(Blame::kCaller,
                fmt::format("plan: pipelines: found {}, expected 1: schedules are compared of one",
                            plan.pipelines.size()));
  if (plan.pipelines[0].stages.size() < 2)
    throw Error(
        Blame::kCaller,
        "plan: pipelines[0].stages: found 1, expected several: schedules are for pipelines");
  std::vector<const Schedule*> wanted;
  for (const std::string& name : names) {
    if (name != "all") wanted.push_back(&find_schedule(name));
    for (const Schedule& schedule : schedules())
      if (name == "all") wanted.push_back(&schedule);
  }
  const GraphAnalysis analysis = analyse(graph, {});
  const Program program = lower(analysis, plan, costs.cluster());
  const ScheduleRequest request =
      schedule_request(program, costs, simulate(program, costs, {.memory = true}));
  std::vector<ScheduleRow> rows;
  for (const Schedule* schedule : wanted)
    rows.push_back(simulate_with(analysis,
                                 plan,
                                 costs,
                                 std::string(schedule->name),
                                 peak_in_flight(schedule->order(request))));
  if (!json) return to_text(rows);
  Json out = Json::array();
  for (const ScheduleRow& row : rows) out.push_back(to_json(row));
  return Json{{"schedules", out}}.dump(2) + "\n";
}

}  // namespace medley
