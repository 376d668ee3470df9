// The predicted execution of a plan: for reports and benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "medley/lower/lower.h"
#include "medley/plan/plan.h"
#include "medley/sim/simulate.h"
#include "python/src/core_costs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

medley::Simulation simulation(const medley::Graph& graph,
                              const medley::Plan& plan,
                              const medley::Cluster& cluster,
                              const std::string& profile,
                              const std::string& file,
                              const medley::Optimizer& optimizer) {
  const nb::gil_scoped_release release;
  verify(plan, graph, cluster);
  const medley::Program program = lower(graph, plan, cluster, optimizer);
  const medley::SimulateOptions options{.trace = false, .memory = true};
  return simulate(program, costs_of(cluster, profile, file), options);
}

nb::dict simulate_plan(const medley::Graph& graph,
                       const medley::Plan& plan,
                       const medley::Cluster& cluster,
                       const std::string& profile,
                       const std::string& file,
                       const medley::Optimizer& optimizer) {
  const medley::Simulation result = simulation(graph, plan, cluster, profile, file, optimizer);
  nb::dict devices, sources, links, answer;
  for (const medley::SimulatedDevice& each : result.devices) {
    nb::dict row;
    row["computes"] = each.computes.value;
    row["waits"] = each.waits.value;
    row["communicates"] = each.communicates.value;
    row["persistent"] = each.persistent_bytes;
    row["peak"] = each.peak_bytes;
    row["peak_at"] = each.peak_at;
    devices[cluster.devices.at(static_cast<size_t>(each.device)).name.c_str()] = row;
  }
  for (const auto& [source, count] : result.ops_by_source)
    sources[to_string(source).c_str()] = count;
  for (const auto& [link, bytes] : result.bytes_by_link) links[link.c_str()] = bytes;
  answer["step"] = result.step.value;
  answer["bytes_by_link"] = links;
  answer["devices"] = devices;
  answer["ops_by_source"] = sources;
  return answer;
}

}  // namespace

void init_simulate(nb::module_& m) {
  m.def(
      "simulate_plan",
      &simulate_plan,
      nb::sig("def simulate_plan(graph: Graph, plan: Plan, cluster: Cluster, profile: str = \"\", "
              "file: str = \"<profile>\", optimizer: Optimizer = ...) -> "
              "dict[str, object]"),
      "graph"_a,
      "plan"_a,
      "cluster"_a,
      "profile"_a = "",
      "file"_a = "<profile>",
      "optimizer"_a = medley::Optimizer(),
      "Returns the predicted nanoseconds of a step, what each device does in it and needs, what "
      "each link carries, and where the times of ops come from. `profile` is a text; without one "
      "all is analytic.");
}
