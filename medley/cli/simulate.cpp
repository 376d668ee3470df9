#include "medley/sim/simulate.h"
#include "medley/base/at.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/base/units.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/simulate_schedules.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/program/lower.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateArguments : PlannedOptions {
  std::string profile, trace;
  std::vector<std::string> schedules;
};

// Links by traffic, the busiest for its bandwidth first.
struct LinkUse {
  const Link* link;
  int64_t bytes;
  Seconds busy;
};
std::vector<LinkUse> link_uses(const Simulation& simulation, const Topology& topology) {
  std::vector<LinkUse> uses;
  for (const Link& link : topology.links())
    if (const auto found = simulation.bytes_by_link.find(link.name);
        found != simulation.bytes_by_link.end())
      uses.push_back({&link, found->second, Bytes{found->second} / link.bandwidth});
  std::stable_sort(
      uses.begin(), uses.end(), [](const LinkUse& a, const LinkUse& b) { return a.busy > b.busy; });
  return uses;
}

Json to_json(const Simulation& simulation, const CostModel& costs, int64_t rows) {
  const double step = to_seconds(simulation.step).value;
  Json json = {{"step_nanoseconds", simulation.step.value},
               {"rows_per_second", step > 0 ? static_cast<double>(rows) / step : 0},
               {"devices", Json::array()},
               {"links", Json::array()},
               {"ops_by_source", Json::object()},
               {"events", simulation.events}};
  const bool several = simulation.devices.back().stage > 0;
  if (several) json["bubble_share"] = simulation.bubble();
  for (const SimulatedDevice& device : simulation.devices)
    json["devices"].push_back(
        {{"device", costs.cluster().devices[at(device.device)].name},
         {"kind", costs.cluster().kind(device.device).name},
         {"computes_nanoseconds", device.computes.value},
         {"waits_nanoseconds", device.waits.value},
         {"communicates_nanoseconds", device.communicates.value},
         {"peak_bytes", device.peak_bytes},
         {"available_bytes",
          static_cast<int64_t>(costs.cluster().kind(device.device).memory_bytes)},
         {"peak_at", device.peak_at}});
  if (several)
    for (size_t d = 0; d < simulation.devices.size(); ++d) {
      json["devices"][d]["stage"] = simulation.devices[d].stage;
      json["devices"][d]["idles_nanoseconds"] = simulation.devices[d].idles.value;
    }
  for (const LinkUse& use : link_uses(simulation, costs.topology()))
    json["links"].push_back(
        {{"link", use.link->name}, {"bytes", use.bytes}, {"busy_seconds", use.busy.value}});
  for (const auto& [source, count] : simulation.ops_by_source)
    json["ops_by_source"][to_string(source)] = count;
  return json;
}

std::string to_text(const Simulation& simulation, const CostModel& costs, int64_t rows) {
  const auto share = [&](Nanoseconds part) {
    return fmt::format("{} {:.1f} %", to_string(part), 100 * (part / simulation.step));
  };
  const bool several = simulation.devices.back().stage > 0;
  std::vector<std::string> header = {
      "device", "kind", "computes", "waits", "communicates", "memory", "available"};
  if (several) header.insert(header.begin() + 1, "stage");
  if (several) header.insert(header.begin() + 5, "idles");
  Table devices(header);
  for (const SimulatedDevice& device : simulation.devices) {
    const DeviceKind& kind = costs.cluster().kind(device.device);
    std::vector<std::string> row = {costs.cluster().devices[at(device.device)].name,
                                    kind.name,
                                    share(device.computes),
                                    share(device.waits),
                                    share(device.communicates),
                                    to_string(Bytes{device.peak_bytes}),
                                    to_string(Bytes{static_cast<int64_t>(kind.memory_bytes)})};
    if (several) row.insert(row.begin() + 1, std::to_string(device.stage));
    if (several) row.insert(row.begin() + 5, share(device.idles));
    devices.add(std::move(row));
  }
  const double step = to_seconds(simulation.step).value;
  std::string out =
      fmt::format("Step: {}, {:.4g} rows/s{}.\n\n{}",
                  to_string(simulation.step),
                  step > 0 ? static_cast<double>(rows) / step : 0,
                  several ? fmt::format("; bubble {:.1f} %", 100 * simulation.bubble()) : "",
                  devices.text());
  Table links({"link", "bytes", "busy"});
  for (const LinkUse& use : link_uses(simulation, costs.topology()))
    links.add({use.link->name,
               to_string(Bytes{use.bytes}),
               fmt::format("{:.1f} %", 100 * use.busy.value / step)});
  if (!links.empty()) out += "\n" + links.text();
  std::string sources;
  for (const auto& [source, count] : simulation.ops_by_source)
    sources += fmt::format("{}{} {}",
                           sources.empty() ? "" : ", ",
                           count,
                           source == CostSource::kAnalytic ? "estimated" : to_string(source));
  return out + fmt::format("\nOp times: {}.\n", sources.empty() ? "none" : sources);
}

void run_simulate(const SimulateArguments& options, Session& session) {
  const Graph graph = read_graph(session.files, options.graph);
  const Cluster cluster = read_cluster(session.files, options.cluster, session.catalogue);
  const Plan plan = read_plan(session.files, options.plan);
  verify_plan(plan, options.plan, graph, cluster);
  const CostModel costs = read_costs(session.files, options.profile, cluster);
  if (!options.schedules.empty()) {
    session.out << simulate_schedules(graph, plan, costs, options.schedules, session.json);
    return;
  }
  const Program program = in_plan(options.plan, [&] { return lower(graph, plan, cluster, {}); });
  const Simulation simulation =
      simulate(program, costs, {.trace = !options.trace.empty(), .memory = true});
  if (!options.trace.empty())
    write_atomically(session.files, options.trace, to_chrome_json(simulation.trace));
  session.out << (session.json ? to_json(simulation, costs, plan.global_batch).dump(2) + "\n"
                               : to_text(simulation, costs, plan.global_batch));
}

}  // namespace

std::function<void()> prepare_simulate(Arguments& arguments, Session& session) {
  auto options = std::make_shared<SimulateArguments>();
  add_planned_options(arguments, *options);
  add_layers_option(arguments, options->layers, "plan");
  add_profile_option(arguments, options->profile, {.excludes = {"--layers"}});
  arguments.text("--trace",
                 options->trace,
                 "Write a trace here, for https://ui.perfetto.dev",
                 {.excludes = {"--layers"}});
  arguments.texts("--schedules",
                  options->schedules,
                  "Compare these schedules of a pipeline: 1f1b,h1f1b; all",
                  {.commas = true, .excludes = {"--trace", "--layers"}});
  return [options, &session] {
    if (without_graph(*options))
      simulate_measured(*options, session);
    else
      run_simulate(*options, session);
  };
}

}  // namespace medley
