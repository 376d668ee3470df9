#include "medley/memory/memory.h"
#include "medley/base/at.h"

#include <fmt/format.h>

#include <algorithm>
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

// Omits parts that no device has.
std::string to_text(const std::vector<DeviceMemory>& all,
                    const Cluster& cluster,
                    const Program& program) {
  const std::vector<std::string> stages = stage_names(program);
  std::vector<size_t> parts;
  std::vector<std::string> header = {"device"};
  if (stages.size() > 1) header.emplace_back("stage");
  for (size_t part = 0; part < kNumMemoryParts; ++part)
    if (std::any_of(all.begin(), all.end(), [&](const DeviceMemory& each) {
          return each.use.at_peak[part] > 0;
        })) {
      parts.push_back(part);
      header.emplace_back(to_string(static_cast<MemoryPart>(part)));
    }
  header.insert(header.end(), {"peak", "available", "saved per micro-batch"});
  Table table(header);
  std::string peaks;
  for (const auto& [stage, device, use] : all) {
    const std::string& name = cluster.devices[at(device)].name;
    std::vector<std::string> row = {name};
    if (stages.size() > 1) row.push_back(stages[at(stage)]);
    for (size_t part : parts) row.push_back(to_string(Bytes{use.at_peak[part]}));
    row.push_back(to_string(Bytes{use.peak}));
    row.push_back(to_string(Bytes{static_cast<int64_t>(cluster.kind(device).memory_bytes)}));
    row.push_back(to_string(Bytes{most_saved(use)}));
    table.add(std::move(row));
    peaks += fmt::format("{}: peak in {}\n", name, use.peak_at);
  }
  return fmt::format("{}\n{}", table.text(), peaks);
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
    if (without_graph(*options))
      memory_measured(*options, session);
    else
      run_memory(*options, session);
  };
}

}  // namespace medley
