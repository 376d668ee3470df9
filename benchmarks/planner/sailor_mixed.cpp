// Plans over measured layers on heterogeneous devices, against other rules on the same tables and
// timer.
//
//   sailor_mixed table.json cluster.yaml --global-batch 2048 [--stages 4] [--sailor-stages 8]
//
// Prints one line of JSON: our step and the seconds of planning on one core, and the best plan of
// each peer (layer_peers.h). Exits with 1 if a peer is faster.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"
#include "planner/layer_peers.h"

namespace {

using namespace medley;

std::string read(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw Error(Blame::kCaller, path + ": found no such file");
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Removes tensors shared by two layers, which the other rules ignore.
LayerTable layers_alone(LayerTable table) {
  for (MeasuredBytes& each : table.bytes)
    for (auto& [kind, bytes] : each.kinds) bytes.tied = {};
  return table;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

nlohmann::ordered_json to_json(const PeerResult& peer, double seconds) {
  return {{"step_s", to_seconds(peer.step).value},
          {"plan", peer.what},
          {"chains", peer.seen},
          {"timed", peer.timed},
          {"seconds", seconds}};
}

int run(const std::string& table,
        const std::string& cluster,
        int64_t batch,
        int stages,
        int sailor_stages,
        const std::string& catalogue) {
  const TableCosts costs(layers_alone(parse_layer_table(read(table), table)),
                         parse_cluster(read(cluster), cluster, read_catalogue(catalogue)));
  const double start = now(), cpu_start = cpu_now();
  const auto outcome = plan_layers({costs, batch, 0});
  const double seconds = now() - start, cpu_seconds = cpu_now() - cpu_start;
  if (const auto* no = std::get_if<Infeasible>(&outcome))
    throw Error(Blame::kCaller, "no plan fits: " + no->reason);
  const auto& ours = std::get<LayerOutcome>(outcome);
  nlohmann::ordered_json json = {{"step_s", to_seconds(ours.report.step).value},
                                 {"planning_s", seconds},
                                 {"planning_cpu_s", cpu_seconds},
                                 {"plan", nlohmann::ordered_json::parse(print(ours.plan))}};
  bool faster = false;
  const auto add = [&](const char* name, const auto& peer) {
    const double began = now();
    const PeerResult result = peer();
    json[name] = to_json(result, now() - began);
    faster = faster || result.step < ours.report.step;
  };
  add("equal_replicas", [&] { return equal_replicas(costs, batch, stages); });
  add("sailor_rules", [&] { return sailor_rules(costs, batch, sailor_stages); });
  fmt::print("{}\n", json.dump());
  return faster ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Plans over measured layers against other rules"};
  std::string table, cluster, catalogue = "data/devices";
  int64_t batch = 0;
  int stages = 4, sailor_stages = 6;
  app.add_option("table", table)->required();
  app.add_option("cluster", cluster)->required();
  app.add_option("--global-batch", batch)->required();
  app.add_option("--stages", stages, "Of chains that are all tried");
  app.add_option("--sailor-stages", sailor_stages, "Of Sailor's rules");
  app.add_option("--catalogue", catalogue);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(table, cluster, batch, stages, sailor_stages, catalogue);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
