#include "medley/memory/memory.h"
#include "medley/base/at.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/units.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/stage_names.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/lower/lower.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

int64_t most_saved(const MemoryUse& use) {
  return use.saved.empty() ? 0 : *std::max_element(use.saved.begin(), use.saved.end());
}

Json to_json(const std::vector<DeviceMemory>& all, const Cluster& cluster, const Program& program) {
  Json rows = Json::array();
  for (const auto& [stage, device, use] : all) {
    const DeviceKind& kind = cluster.kind(device);
    Json row = {
        {"device", cluster.devices[at(device)].name}, {"device_type", kind.name}, {"stage", stage}};
    if (const int pipeline = program.stages[at(stage)].pipeline; program.stages.back().pipeline > 0)
      row["pipeline"] = pipeline;
    for (size_t part = 0; part < kNumMemoryParts; ++part)
      row[fmt::format("{}_bytes", to_string(static_cast<MemoryPart>(part)))] = use.at_peak[part];
    row["peak_bytes"] = use.peak;
    row["available_bytes"] = static_cast<int64_t>(kind.memory_bytes);
    row["saved_per_microbatch_bytes"] = use.saved;
    row["peak_at"] = use.peak_at;
    rows.push_back(std::move(row));
  }
  return rows;
}

// One unit for all cells: MiB, or KiB if no device needs one MiB.
std::string to_text(const std::vector<DeviceMemory>& all,
                    const Cluster& cluster,
                    const Program& program) {
  const std::vector<std::string> stages = stage_names(program);
  int64_t most = 0;
  for (const DeviceMemory& each : all) most = std::max(most, each.use.peak);
  const bool is_small = most < 1 << 20;
  const auto cell = [&](int64_t bytes) {
    const double amount = static_cast<double>(bytes) / (is_small ? 1 << 10 : 1 << 20);
    return amount < 0.05 ? "" : amount < 100 ? fmt::format("{:.1f}", amount) : grouped(amount);
  };
  std::string titles = "device|stage";
  for (size_t part = 0; part < kNumMemoryParts; ++part)
    titles += fmt::format("|{}", to_string(static_cast<MemoryPart>(part)));
  Table table(titles + "|peak|available|saved per micro-batch");
  std::map<std::string, std::vector<std::string>> devices;  // by the place of their peak
  for (const auto& [stage, device, use] : all) {
    const std::string& name = cluster.devices[at(device)].name;
    std::vector<std::string> row = {name, stages.size() > 1 ? stages[at(stage)] : ""};
    for (const int64_t bytes : use.at_peak) row.push_back(cell(bytes));
    row.push_back(cell(use.peak));
    row.push_back(to_string(Bytes{static_cast<int64_t>(cluster.kind(device).memory_bytes)}));
    row.push_back(cell(most_saved(use)));
    table.add(std::move(row));
    devices[use.peak_at].push_back(name);
  }
  std::string text = (is_small ? "KiB" : "MiB") + std::string(" at the peak of each device:\n");
  text += table.text() + "saved: activations of all micro-batches in flight\n\n";
  for (const auto& [place, names] : devices)
    text += wrapped(fmt::format("peak in {}: {}\n", place, fmt::join(names, ", ")));
  return text;
}

void run_memory(const PlannedOptions& options, Session& session) {
  const Graph graph = read_graph(session.files, options.graph);
  const Cluster cluster = read_cluster(session.files, options.cluster, session.catalogue);
  const Plan plan = read_plan(session.files, options.plan);
  verify_plan(plan, options.plan, graph, cluster);
  const Program program = in_plan(options.plan, [&] { return lower(graph, plan, cluster, {}); });
  const std::vector<DeviceMemory> all = memory_uses(program);
  session.out << (session.json ? to_json(all, cluster, program).dump(2) + "\n"
                               : to_text(all, cluster, program));
}

}  // namespace

std::function<void()> prepare_memory(Arguments& arguments, Session& session) {
  auto options = std::make_shared<PlannedOptions>();
  add_planned_options(arguments, *options);
  add_layers_option(arguments, options->layers, {"cluster", "plan"});
  return [options, &session] {
    without_graph(*options) ? memory_measured(*options, session) : run_memory(*options, session);
  };
}

}  // namespace medley
