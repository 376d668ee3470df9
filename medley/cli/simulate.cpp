#include "medley/sim/simulate.h"
#include "medley/base/at.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/units.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/simulate_schedules.h"
#include "medley/cli/stage_names.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/lower/lower.h"
#include "medley/sim/gradient_sync_times.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateArguments : PlannedOptions {
  std::string profile, trace;
  std::vector<std::string> schedules;
};

constexpr size_t kMostLinks = 16;  // shown
// Links by traffic relative to bandwidth, the busiest first.
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

// The output on the simulated program.
struct Shown {
  const Simulation& simulation;
  const Program& program;
  const CostModel& costs;
  bool several_stages() const { return program.stages.size() > 1; }
  bool several_pipelines() const { return program.stages.back().pipeline > 0; }
  double rows_per_second() const {
    const double step = to_seconds(simulation.step).value;
    return step > 0 ? static_cast<double>(program.global_batch) / step : 0;
  }
};

Json device_json(const SimulatedDevice& device, const Shown& shown) {
  const Cluster& cluster = shown.costs.cluster();
  const DeviceKind& kind = cluster.kind(device.device);
  Json row = {{"device", cluster.devices[at(device.device)].name},
              {"device_type", kind.name},
              {"computes_nanoseconds", device.computes.value},
              {"waits_nanoseconds", device.waits.value},
              {"communicates_nanoseconds", device.communicates.value},
              {"peak_bytes", device.peak_bytes},
              {"available_bytes", static_cast<int64_t>(kind.memory_bytes)},
              {"peak_at", device.peak_at}};
  if (shown.several_stages()) {
    row["stage"] = device.stage;
    row["idles_nanoseconds"] = device.idles.value;
  }
  if (shown.several_pipelines()) {
    row["pipeline"] = shown.program.stages[at(device.stage)].pipeline;
    row["waits_for_pipelines_nanoseconds"] = device.others.value;
  }
  return row;
}

Json gradient_syncs_json(const Shown& shown) {
  const std::vector<std::string> names = stage_names(shown.program);
  const auto named = [&](const std::vector<int>& stages) {
    Json list = Json::array();
    for (int stage : stages) list.push_back(names[at(stage)]);
    return list;
  };
  Json rows = Json::array();
  for (const GradientSyncTimes& sync :
       gradient_sync_times(shown.program, shown.costs, shown.simulation)) {
    const auto& links = shown.costs.topology().links();
    rows.push_back({{"gradient_sync", sync.name},
                    {"stages", named(sync.stages)},
                    {"parameters", sync.tensors},
                    {"bytes", sync.bytes},
                    {"traffic_bytes", sync.traffic},
                    {"link", sync.link < 0 ? "" : links[at(sync.link)].name},
                    {"begins_nanoseconds", sync.begins.value},
                    {"ends_nanoseconds", sync.ends.value},
                    {"alone_nanoseconds", sync.alone.value},
                    {"overlapped_nanoseconds", sync.overlapped.value},
                    {"overlaps", named(sync.overlaps)}});
  }
  return rows;
}

Json to_json(const Shown& shown) {
  const Simulation& simulation = shown.simulation;
  Json json = {{"step_nanoseconds", simulation.step.value},
               {"rows_per_second", shown.rows_per_second()},
               {"devices", Json::array()},
               {"links", Json::array()},
               {"ops_by_source", Json::object()},
               {"events", simulation.events}};
  if (shown.several_stages()) json["bubble_share"] = simulation.bubble();
  for (const SimulatedDevice& device : simulation.devices)
    json["devices"].push_back(device_json(device, shown));
  for (const LinkUse& use : link_uses(simulation, shown.costs.topology()))
    json["links"].push_back(
        {{"link", use.link->name}, {"bytes", use.bytes}, {"busy_seconds", use.busy.value}});
  for (const auto& [source, count] : simulation.ops_by_source)
    json["ops_by_source"][to_string(source)] = count;
  if (Json syncs = gradient_syncs_json(shown); !syncs.empty())
    json["gradient_syncs"] = std::move(syncs);
  return json;
}

std::string devices_text(const Shown& shown) {
  const auto share = [&](Nanoseconds part) {
    return part.value == 0 ? "" : to_string(part) + " " + percent(part / shown.simulation.step);
  };
  const std::vector<std::string> names = stage_names(shown.program);
  std::string titles = "device|stage|device type|busy|exposed communication|bubble";
  Table devices(titles + "|of it for pipelines|memory|available");
  for (const SimulatedDevice& device : shown.simulation.devices) {
    const Cluster& cluster = shown.costs.cluster();
    const DeviceKind& kind = cluster.kind(device.device);
    devices.add({cluster.devices[at(device.device)].name,
                 shown.several_stages() ? names[at(device.stage)] : "",
                 kind.name,
                 share(device.computes),
                 share(shown.several_stages() ? device.waits - device.idles : device.waits),
                 shown.several_stages() ? share(device.idles) : "",
                 share(device.others),
                 to_string(Bytes{device.peak_bytes}),
                 to_string(Bytes{static_cast<int64_t>(kind.memory_bytes)})});
  }
  std::string legend = "exposed communication: idle during communication of the own stage\n";
  if (shown.several_stages()) legend += "bubble: idle until another stage sends or receives\n";
  if (shown.several_pipelines())
    legend += "of it for pipelines: until another pipeline has its gradients ready\n";
  return devices.text() + legend;
}

std::string to_text(const Shown& shown) {
  const Simulation& simulation = shown.simulation;
  std::string out =
      fmt::format("Step: {}, {}{}.\n\n{}",
                  to_string(simulation.step),
                  samples_text(shown.rows_per_second()),
                  shown.several_stages() ? "; bubble " + percent(simulation.bubble()) : "",
                  devices_text(shown));
  Table links("link|bytes|busy");
  const std::vector<LinkUse> uses = link_uses(simulation, shown.costs.topology());
  for (size_t i = 0; i < std::min(uses.size(), kMostLinks); ++i)
    links.add({uses[i].link->name,
               to_string(Bytes{uses[i].bytes}),
               percent(uses[i].busy.value / to_seconds(simulation.step).value)});
  if (!links.empty()) out += "\n" + links.text();
  if (uses.size() > kMostLinks) out += fmt::format("... and {} more\n", uses.size() - kMostLinks);
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
      simulate(program, costs, {.trace = !options.trace.empty(), .memory = true, .syncs = true});
  if (!options.trace.empty())
    write_atomically(session.files, options.trace, to_chrome_json(simulation.trace));
  const Shown shown{simulation, program, costs};
  const std::string next = options.trace.empty()
                               ? next_text({report_command(options, options.profile)})
                               : "Next: open " + options.trace + " in https://ui.perfetto.dev\n";
  session.out << (session.json ? to_json(shown).dump(2) + "\n" : to_text(shown) + next);
}

}  // namespace

std::function<void()> prepare_simulate(Arguments& arguments, Session& session) {
  auto options = std::make_shared<SimulateArguments>();
  add_planned_options(arguments, *options);
  add_layers_option(arguments, options->layers, {"cluster", "plan"});
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
    if (!without_graph(*options)) return run_simulate(*options, session);
    simulate_measured(*options, session);
    if (!session.json) session.out << next_text({report_command(*options, "")});
  };
}

}  // namespace medley
