// Times of SPMD synthesis, stage by stage, for graphs captured by benchmarks/planner/graphs.py:
//
//   planner_times [--batch N] [--fast N] [--slow N] [--node N] [--second-axis N] [--different]
//                 [--plan] <graph> ...
//
// One core; the graph is loaded before the clock starts. Prints one line of JSON per graph: seconds
// on the wall, and ("cpu") of this process, which are what it takes on a core of its own however
// busy the machine is.

#include <fmt/format.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <sstream>

#include "medley/graph/text.h"
#include "medley/plan/apportion.h"
#include "medley/planner/planner.h"
#include "medley/planner/spmd.h"
#include "medley/planner/spmd_problem.h"
#include "medley/program/complete.h"
#include "planner/two_axis_instances.h"

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

// Nodes of so many devices, 10.4 Gbit/s and 30 us between them, 20 GB/s and 5 us inside.
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

// Every unary cost within 10 % of what it was: no two layers are alike.
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

// Over the second of two axes: equal devices, one class of parts.
Pbqp problem_of_equals(const Prepared& prepared, const Factors& factors, int count, int64_t batch) {
  const Cluster cluster = cluster_of(count, 0, 1);
  const CostModel costs(cluster);
  const std::vector<double> shares(static_cast<size_t>(count), 1.0);
  std::vector<int> all(shares.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<Part> parts{{"rows", {}, {}}, {"even", {}, {}}};
  OpCatalogue catalogue(
      prepared.graph, factors, {costs, all, parts, {batch, apportion(batch, shares)}}, {});
  return SpmdProblem(prepared, catalogue, {}).pbqp();
}

void run(const std::string& path,
         int64_t batch,
         int fast,
         int slow,
         int per_node,
         int second_axis,
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
  microbatch.lengths = apportion(batch, shares);
  const std::vector<Part> parts{{"rows", {}, {}}, {"even", {}, {}}, {"speed", {}, shares}};
  OpCatalogue catalogue(prepared.graph, factors, {costs, all, parts, microbatch}, {});
  const SpmdProblem problem(prepared, catalogue, {});
  const Seconds tables = lap();
  const Pbqp pbqp =
      second_axis == 0
          ? problem.pbqp()
          : two_axis_instance(problem.pbqp(),
                              problem_of_equals(prepared, factors, second_axis, batch));
  const Pbqp changed = different ? made_different(pbqp) : Pbqp{};
  lap();
  PbqpOptions options;
  if (lifted) options.method = PbqpMethod::kLifted;
  const auto solution = solve(different ? changed : pbqp, options);
  const Seconds search = lap();
  double choices = 0;
  for (int v = 0; v < pbqp.num_variables(); ++v) choices += pbqp.num_choices(v);
  fmt::print(
      "{{\"graph\": \"{}\", \"ops\": {}, \"devices\": {}, \"signatures\": {}, \"variables\": {}, "
      "\"edges\": {}, \"unaries\": {}, \"tables\": {}, \"choices\": {:.2f}, \"prepare_s\": {:.3f}, "
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
      choices / pbqp.num_variables(),
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
  int fast = 2, slow = 6, per_node = 1, second_axis = 0;
  bool different = false, whole = false, lifted = false;
  app.add_option("graphs", graphs)->required();
  app.add_option("--batch", batch);
  app.add_option("--fast", fast);
  app.add_option("--slow", slow);
  app.add_option("--node", per_node, "devices per node");
  app.add_option("--second-axis",
                 second_axis,
                 "so many equal devices in the place of each: a stand-in for two axes");
  app.add_flag("--different", different, "no two layers alike");
  app.add_flag("--plan", whole, "the whole strategy, ratios and simulation included");
  app.add_flag("--lifted", lifted, "by the lifted dual alone");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& graph : graphs)
    run(graph, batch, fast, slow, per_node, second_axis, different, whole, lifted);
}
