// The predicted execution of a plan: for reports and benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "medley/sim/simulate.h"
#include "python/src/core_costs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

medley::Simulation simulated(const medley::Program& program,
                             const medley::Cluster& cluster,
                             const std::string& profile,
                             const std::string& file) {
  const nb::gil_scoped_release release;
  const medley::SimulateOptions options{.trace = false, .memory = true};
  return medley::simulate(program, costs_of(cluster, profile, file), options);
}

nb::dict simulate(const medley::Program& program,
                  const medley::Cluster& cluster,
                  const std::string& profile,
                  const std::string& file) {
  const medley::Simulation result = simulated(program, cluster, profile, file);
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
  m.def("simulate",
        &simulate,
        nb::sig("def simulate(program: Program, cluster: Cluster, profile: str = \"\", "
                "file: str = \"<profile>\") -> dict[str, object]"),
        "program"_a,
        "cluster"_a,
        "profile"_a = "",
        "file"_a = "<profile>",
        "Returns the predicted nanoseconds of a step, what each device does in it and needs, what "
        "each link carries, and where the times of ops come from, by the figures of `cluster`. It "
        "has the devices of the program. `profile` is a text; without one all is analytic.");
}
