// Times of SPMD synthesis, stage by stage, for graphs captured by benchmarks/planner/graphs.py:
//
//   planner_times [--batch N] [--fast N] [--slow N] [--node N] [--two-axes] [--different]
//                 [--plan] <graph> ...
//
// One core; the graph is loaded before the clock starts. Prints one line of JSON per graph:
// wall-clock seconds, and ("cpu") seconds of this process, the time on an idle core however busy
// the machine is.

#include <fmt/format.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <sstream>

#include "medley/graph/text.h"
#include "medley/lower/complete.h"
#include "medley/planner/planner.h"
#include "medley/sharding/parts.h"
#include "medley/synthesis/spmd.h"
#include "medley/synthesis/spmd_problem.h"

namespace {

using namespace medley;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Returns nodes of so many devices, 10.4 Gbit/s and 30 us between them, 20 GB/s and 5 us inside.
Cluster cluster_of(int fast, int slow, int per_node) {
  DeviceKind kind{"fast",
                  {{DType::kF32, 14e12}, {DType::kBF16, 14e12}, {DType::kF64, 7e12}},
                  {{DType::kF32, 12e12}, {DType::kBF16, 12e12}, {DType::kF64, 6e12}},
                  64e9,
                  0.8e12,
                  5e-6};
  Cluster cluster;
  for (const auto& [name, count, speed] :
       {std::tuple("fast", fast, 1.0), std::tuple("slow", slow, 1 / 1.8)}) {
    if (count == 0) continue;
    NodePool pool;
    pool.name = name;
    pool.kind = scaled(kind, speed);
    pool.kind.name = name;
    pool.count = count / per_node;
    pool.devices_per_node = per_node;
    for (int i = 0; i < count; ++i)
      cluster.devices.push_back({fmt::format("{}/{}/{}", name, i / per_node, i % per_node),
                                 static_cast<int>(cluster.pools.size()),
                                 i / per_node,
                                 i % per_node});
    cluster.pools.push_back(pool);
  }
  Network lan;
  lan.name = "lan";
  for (const NodePool& pool : cluster.pools) lan.connects.push_back(pool.name);
  lan.bandwidth = 1.3e9;
  lan.latency = 30e-6;
  cluster.networks = {lan};
  if (per_node > 1) cluster.networks.push_back({"fabric", true, {}, 20e9, 5e-6, std::nullopt});
  return cluster;
}

// Changes every unary cost by up to 10 %, so that all layers differ.
Pbqp made_different(Pbqp problem) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> factor(0.9, 1.1);
  std::vector<std::vector<int64_t>> unaries;
  for (size_t v = 0; v < problem.unary_of.size(); ++v) {
    unaries.push_back(problem.unaries[static_cast<size_t>(problem.unary_of[v])]);
    for (int64_t& cost : unaries.back())
      if (cost < kForbidden)
        cost = static_cast<int64_t>(static_cast<double>(cost) * factor(random));
    problem.unary_of[v] = static_cast<int32_t>(v);
  }
  problem.unaries = std::move(unaries);
  return problem;
}

// The numbers of choices of variables.
struct ChoiceCounts {
  double mean = 0;
  int least = 0, median = 0, most = 0;
};

ChoiceCounts choice_counts(const Pbqp& problem) {
  std::vector<int> counts;
  for (int v = 0; v < problem.num_variables(); ++v) counts.push_back(problem.num_choices(v));
  std::sort(counts.begin(), counts.end());
  return {std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size()),
          counts.front(),
          counts[counts.size() / 2],
          counts.back()};
}

void run(const std::string& path,
         int64_t batch,
         int fast,
         int slow,
         int per_node,
         bool two_axes,
         bool different,
         bool whole,
         bool lifted) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const Graph graph = parse_graph(text.str(), path);
  const Cluster cluster = cluster_of(fast, slow, per_node);
  const CostModel costs(cluster);
  struct Seconds {
    double wall, cpu;
  };
  Seconds start{now(), cpu_now()};
  const auto lap = [&] {
    const Seconds end{now(), cpu_now()};
    const Seconds taken{end.wall - start.wall, end.cpu - start.cpu};
    start = end;
    return taken;
  };
  const Prepared prepared = prepare(graph, {});
  const Seconds preparing = lap();
  const Factors factors = factorize(prepared.graph);
  const Seconds labelling = lap();
  const auto devices = static_cast<size_t>(fast + slow);
  Plan plan;
  std::vector<int> all;
  std::vector<double> shares;
  Microbatch microbatch{batch, {}};
  for (size_t d = 0; d < devices; ++d) {
    all.push_back(static_cast<int>(d));
    shares.push_back(static_cast<int>(d) < fast ? 1.8 : 1.0);
  }
  std::vector<int64_t> shape{static_cast<int64_t>(devices)};
  if (two_axes) {
    shape = {static_cast<int64_t>(devices) / per_node, per_node};
    for (size_t node = 0; node < devices / static_cast<size_t>(per_node); ++node)
      shares[node] = shares[node * static_cast<size_t>(per_node)];
    shares.resize(static_cast<size_t>(shape[0]));
  }
  microbatch.lengths = apportion(batch, shares);
  std::vector<Part> parts{{"rows", {}, {}}, {"even", {}, {}}};
  if (!two_axes || !are_equal(shares)) parts.push_back({"speed", {}, shares});
  OpCatalogue catalogue(prepared.graph, factors, {costs, all, parts, microbatch, shape}, {});
  const SpmdProblem problem(prepared, catalogue, {});
  const Seconds tables = lap();
  const Pbqp& pbqp = problem.pbqp();
  const Pbqp changed = different ? made_different(pbqp) : Pbqp{};
  lap();
  PbqpOptions options;
  if (lifted) options.method = PbqpMethod::kLifted;
  const auto solution = solve(different ? changed : pbqp, options);
  const Seconds search = lap();
  const ChoiceCounts choices = choice_counts(pbqp);
  fmt::print(
      "{{\"graph\": \"{}\", \"ops\": {}, \"devices\": {}, \"signatures\": {}, \"variables\": {}, "
      "\"edges\": {}, \"unaries\": {}, \"tables\": {}, \"choices\": {:.2f}, \"least\": {}, "
      "\"median\": {}, "
      "\"most\": {}, \"prepare_s\": {:.3f}, "
      "\"labels_s\": {:.3f}, \"tables_s\": {:.3f}, \"search_s\": {:.3f}, "
      "\"labels_cpu_s\": {:.4f}, \"tables_cpu_s\": {:.4f}, \"search_cpu_s\": {:.4f}, "
      "\"cost_ms\": {:.6f}, "
      "\"bound_ms\": {:.6f}, \"largest_table\": {}, \"peak_mib\": {:.0f}}}\n",
      graph.name,
      prepared.graph.ops.size(),
      devices,
      catalogue.num_signatures(),
      pbqp.num_variables(),
      pbqp.edges.size(),
      pbqp.unaries.size(),
      pbqp.tables.size(),
      choices.mean,
      choices.least,
      choices.median,
      choices.most,
      preparing.wall,
      labelling.wall,
      tables.wall,
      search.wall,
      labelling.cpu,
      tables.cpu,
      search.cpu,
      solution ? static_cast<double>(solution->cost) * 1e-7 : -1,
      solution ? static_cast<double>(solution->lower_bound) * 1e-7 : -1,
      solution ? solution->largest_table : 0,
      peak_mib());
  if (!whole) return;
  const Request request{.graph = graph,
                        .cluster = cluster,
                        .costs = &costs,
                        .strategy = "hap",
                        .global_batch = batch,
                        .microbatches = 0,
                        .devices = {},
                        .optimizer = {}};
  lap();
  const Outcome outcome = medley::plan(request);
  const Seconds planning = lap();
  if (const auto* no = std::get_if<Infeasible>(&outcome)) fmt::print("{}\n", no->reason);
  fmt::print(
      "{{\"graph\": \"{}\", \"whole_s\": {:.3f}, \"whole_cpu_s\": {:.3f}, \"peak_mib\": {:.0f}}}\n",
      graph.name,
      planning.wall,
      planning.cpu,
      peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times of SPMD synthesis");
  std::vector<std::string> graphs;
  int64_t batch = 96;
  int fast = 2, slow = 6, per_node = 1;
  bool two_axes = false, different = false, whole = false, lifted = false;
  app.add_option("graphs", graphs)->required();
  app.add_option("--batch", batch);
  app.add_option("--fast", fast);
  app.add_option("--slow", slow);
  app.add_option("--node", per_node, "devices per node");
  app.add_flag("--two-axes", two_axes, "a mesh of nodes and devices of a node");
  app.add_flag("--different", different, "no two layers identical");
  app.add_flag("--plan", whole, "the whole strategy, ratios and simulation included");
  app.add_flag("--lifted", lifted, "by the lifted dual alone");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& graph : graphs)
    run(graph, batch, fast, slow, per_node, two_axes, different, whole, lifted);
}
