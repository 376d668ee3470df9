#include "medley/program/memory.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/units.h"
#include "medley/cli/inputs.h"
#include "medley/cli/options.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/program/lower.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

int64_t most_saved(const MemoryUse& use) {
  return use.saved.empty() ? 0 : *std::max_element(use.saved.begin(), use.saved.end());
}

Json to_json(const std::vector<MemoryUse>& uses,
             const LoweredStage& stage,
             const Cluster& cluster) {
  Json rows = Json::array();
  for (size_t d = 0; d < uses.size(); ++d) {
    Json row = {{"device", cluster.devices[static_cast<size_t>(stage.devices[d])].name},
                {"kind", cluster.kind(stage.devices[d]).name}};
    for (size_t part = 0; part < kNumMemoryParts; ++part)
      row[fmt::format("{}_bytes", to_string(static_cast<MemoryPart>(part)))] =
          uses[d].at_peak[part];
    row["peak_bytes"] = uses[d].peak;
    row["available_bytes"] = static_cast<int64_t>(cluster.kind(stage.devices[d]).memory_bytes);
    row["saved_per_microbatch_bytes"] = uses[d].saved;
    row["peak_at"] = uses[d].peak_at;
    rows.push_back(std::move(row));
  }
  return rows;
}

// Parts that no device has are left out.
std::string to_text(const std::vector<MemoryUse>& uses,
                    const LoweredStage& stage,
                    const Cluster& cluster) {
  std::vector<size_t> parts;
  std::vector<std::string> header = {"device"};
  for (size_t part = 0; part < kNumMemoryParts; ++part)
    if (std::any_of(uses.begin(), uses.end(), [&](const MemoryUse& use) {
          return use.at_peak[part] > 0;
        })) {
      parts.push_back(part);
      header.emplace_back(to_string(static_cast<MemoryPart>(part)));
    }
  header.insert(header.end(), {"peak", "available", "saved per micro-batch"});
  Table table(header);
  std::string peaks;
  for (size_t d = 0; d < uses.size(); ++d) {
    const std::string& name = cluster.devices[static_cast<size_t>(stage.devices[d])].name;
    std::vector<std::string> row = {name};
    for (size_t part : parts) row.push_back(to_string(Bytes{uses[d].at_peak[part]}));
    row.push_back(to_string(Bytes{uses[d].peak}));
    row.push_back(
        to_string(Bytes{static_cast<int64_t>(cluster.kind(stage.devices[d]).memory_bytes)}));
    row.push_back(to_string(Bytes{most_saved(uses[d])}));
    table.add(std::move(row));
    peaks += fmt::format("{}: peak in {}\n", name, uses[d].peak_at);
  }
  return fmt::format("{}\n{}", table.text(), peaks);
}

void run(const PlannedOptions& options, Session& session) {
  const Graph graph = read_graph(session.files, options.graph);
  const Cluster cluster = read_cluster(session.files, options.cluster, session.catalogue);
  const Plan plan = read_plan(session.files, options.plan);
  verify_plan(plan, options.plan, graph, cluster);
  const Program program = lower(graph, plan, cluster, {});
  const LoweredStage& stage = program.stages[0];
  std::vector<MemoryUse> uses;
  for (size_t d = 0; d < stage.devices.size(); ++d)
    uses.push_back(memory_use(stage, static_cast<int>(d)));
  session.out << (session.json ? to_json(uses, stage, cluster).dump(2) + "\n"
                               : to_text(uses, stage, cluster));
}

}  // namespace

std::function<void()> prepare_memory(CLI::App& app, Session& session) {
  auto options = std::make_shared<PlannedOptions>();
  add_planned_options(app, *options);
  return [options, &session] { run(*options, session); };
}

}  // namespace medley
