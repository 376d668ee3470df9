// The content of a profile, and measuring it by emulation: for medley.profiling.profile.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "medley/base/error.h"
#include "medley/lower/lower.h"
#include "medley/measure/emulated_collectives.h"
#include "medley/measure/emulated_device.h"
#include "medley/measure/session.h"
#include "medley/prepare/prepare.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::Cluster;
using medley::MeasuringSession;
using medley::WantedOps;
using Release = nb::call_guard<nb::gil_scoped_release>;

void add_graph(WantedOps& wanted,
               const medley::Graph& graph,
               int64_t rows,
               const medley::Optimizer& optimizer) {
  const medley::Graph whole = prepare(graph, optimizer).graph;
  wanted.add(whole, std::vector<int64_t>(whole.symbols.size(), rows));
}

void add_plan(WantedOps& wanted,
              const medley::Graph& graph,
              const medley::Plan& plan,
              const Cluster& cluster,
              const medley::Optimizer& optimizer) {
  verify(plan, graph, cluster);
  wanted.add(lower(graph, plan, cluster, optimizer));
}

void make_session(MeasuringSession* self,
                  WantedOps& wanted,
                  const std::string& known,
                  const std::string& file,
                  const std::string& executor) {
  medley::Profile profile;
  profile.executor = executor;
  if (!known.empty()) profile = medley::parse_profile(known, file);
  new (self) MeasuringSession(wanted.take(), profile, executor);
}

const medley::DeviceKind& kind_of(const std::vector<medley::DeviceKind>& kinds,
                                  const std::string& name) {
  for (const medley::DeviceKind& kind : kinds)
    if (kind.name == name) return kind;
  throw medley::Error(medley::Blame::kCaller, "cluster: found no device of the kind " + name);
}

int64_t run_emulated(MeasuringSession& session,
                     const Cluster& cluster,
                     const std::string& kind,
                     uint64_t seed,
                     double spread,
                     double seconds) {
  const auto kinds = medley::device_kinds(cluster);
  medley::EmulatedDevice device(kind_of(kinds, kind), {seed, spread});
  return session.run(device.timer(), kind, to_nanoseconds(medley::Seconds{seconds}));
}

void run_collective_emulated(MeasuringSession& session,
                             const Cluster& cluster,
                             int64_t most_bytes,
                             int64_t index) {
  const medley::Topology topology(cluster);
  const auto wanted = medley::wanted_collectives(topology, most_bytes);
  for (auto& each : measure_emulated(wanted.at(static_cast<size_t>(index)), topology))
    session.add(std::move(each));
}

void run_overlap_emulated(MeasuringSession& session,
                          const Cluster& cluster,
                          uint64_t seed,
                          double spread) {
  for (const medley::DeviceKind& kind : medley::device_kinds(cluster))
    session.add(medley::measure_emulated_overlap(kind, {seed, spread}));
}

using Wanted = std::tuple<std::string, std::vector<int>, std::vector<int64_t>>;

std::vector<Wanted> collectives(const Cluster& cluster, int64_t most_bytes) {
  std::vector<Wanted> rows;
  for (const auto& each : medley::wanted_collectives(medley::Topology(cluster), most_bytes))
    rows.emplace_back(describe(each, cluster, "", {}).collective, each.devices, each.lengths);
  return rows;
}

using Known = std::tuple<std::string, std::vector<std::string>, std::vector<int64_t>>;

std::vector<Known> known(const MeasuringSession& session) {
  std::vector<Known> rows;
  for (const auto& each : session.profile().collectives)
    rows.emplace_back(each.collective, each.devices, each.lengths);
  return rows;
}

void add_collective(MeasuringSession& session,
                    const std::string& collective,
                    const std::string& algorithm,
                    std::vector<std::string> devices,
                    std::vector<int64_t> lengths,
                    int64_t nanoseconds) {
  session.add(medley::CollectiveMeasurement{
      collective, algorithm, std::move(devices), std::move(lengths), {nanoseconds}});
}

}  // namespace

void init_measure(nb::module_& m) {
  nb::class_<WantedOps>(m, "WantedOps", "The ops that a profile should hold, once each.")
      .def(nb::init<const Cluster&>(), "cluster"_a, nb::keep_alive<1, 2>())
      .def("add_graph",
           &add_graph,
           "graph"_a,
           "rows"_a,
           "optimizer"_a = medley::Optimizer(),
           Release(),
           "Every op of a graph, undivided, and of the update of its parameters.")
      .def("add_plan",
           &add_plan,
           "graph"_a,
           "plan"_a,
           "cluster"_a,
           "optimizer"_a = medley::Optimizer(),
           Release(),
           "Every op of a plan (JSON) at the sizes of its devices.")
      .def("add_grid",
           &WantedOps::add_grid,
           "pieces"_a,
           Release(),
           "Shards of what is wanted so far, and ops of every power of two of work.");

  nb::class_<MeasuringSession>(m, "MeasuringSession", "A profile in the making.")
      .def("__init__",
           &make_session,
           "wanted"_a,
           "known"_a,
           "file"_a,
           "executor"_a,
           "Takes what is wanted. `known`: the text of an earlier profile, or nothing.")
      .def_prop_ro("seen", [](const MeasuringSession& s) { return s.wanted().seen; })
      .def_prop_ro("unique", [](const MeasuringSession& s) { return s.wanted().unique; })
      .def_prop_ro("wanted", &MeasuringSession::num_wanted)
      .def_prop_ro("left", &MeasuringSession::num_left)
      .def_prop_ro("share", &MeasuringSession::share)
      .def_prop_ro("failed", &MeasuringSession::failed)
      .def_prop_ro("collectives", &known, "(collective, names of devices, bytes) of each.")
      .def("text", [](const MeasuringSession& session) { return print(session.profile()); })
      .def(
          "add",
          [](MeasuringSession& session, const std::string& text, const std::string& file) {
            session.add(medley::parse_profile(text, file));
          },
          "text"_a,
          "file"_a,
          "Adds what another process has measured.")
      .def("add_collective",
           &add_collective,
           "collective"_a,
           "algorithm"_a,
           "devices"_a,
           "lengths"_a,
           "nanoseconds"_a)
      .def(
          "add_overlap",
          [](MeasuringSession& session, const std::string& kind, double slowdown) {
            session.add(medley::OverlapMeasurement{kind, std::max(1.0, slowdown)});
          },
          "kind"_a,
          "slowdown"_a)
      .def("run_emulated",
           &run_emulated,
           "cluster"_a,
           "kind"_a,
           "truth_seed"_a,
           "truth_spread"_a,
           "seconds"_a,
           Release(),
           "Measures ops of a kind for so long; returns how many of them are left.")
      .def("run_collective_emulated",
           &run_collective_emulated,
           "cluster"_a,
           "most_bytes"_a,
           "index"_a,
           Release())
      .def("run_overlap_emulated",
           &run_overlap_emulated,
           "cluster"_a,
           "truth_seed"_a,
           "truth_spread"_a,
           Release());

  m.def("wanted_collectives",
        &collectives,
        "cluster"_a,
        "most_bytes"_a,
        "(collective, devices by number, bytes) of everything that is worth measuring.");
  m.def(
      "device_kinds",
      [](const Cluster& cluster) {
        std::vector<std::string> names;
        for (const medley::DeviceKind& kind : medley::device_kinds(cluster))
          names.push_back(kind.name);
        return names;
      },
      "cluster"_a,
      "The device types of a cluster by name.");
}
