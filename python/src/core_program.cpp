// medley._core.Program: a lowered plan and its properties; figures of programs for the tests.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "medley/graph/graph.h"
#include "medley/lower/lower.h"
#include "medley/lower/lower_isomorphic.h"
#include "medley/memory/memory.h"
#include "medley/program/fewer_rows.h"
#include "medley/program/groups.h"
#include "medley/program/rows.h"
#include "medley/sharding/coupling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::Graph;
using medley::Program;

medley::LowerOptions options_of(bool keep_gradients, bool commit) {
  medley::LowerOptions options;
  options.keep_gradients = keep_gradients;
  options.commit = commit;
  return options;
}

void make_program(Program* self,
                  const Graph& graph,
                  const medley::Plan& plan,
                  const medley::Cluster& cluster,
                  const medley::Optimizer& optimizer,
                  bool keep_gradients,
                  bool commit) {
  const medley::LowerOptions options = options_of(keep_gradients, commit);
  const nb::gil_scoped_release release;
  verify(plan, graph, cluster);
  new (self) Program(lower(graph, plan, cluster, optimizer, options));
}

// Returns the program of the same model at other sizes.
Program isomorphic(const Program& planned,
                   const Graph& graph,
                   const Graph& other,
                   const medley::Plan& plan,
                   const medley::Cluster& cluster,
                   const medley::Optimizer& optimizer,
                   bool keep_gradients,
                   bool commit) {
  const medley::LowerOptions options = options_of(keep_gradients, commit);
  const nb::gil_scoped_release release;
  Program program = lower_isomorphic(graph, other, plan, cluster, optimizer, options);
  require_isomorphic(planned, program);
  return program;
}

std::vector<int> devices(const Program& program) {
  std::vector<int> all;
  for (const medley::LoweredStage& stage : program.stages)
    all.insert(all.end(), stage.devices.begin(), stage.devices.end());
  return all;
}

std::vector<std::pair<int64_t, int64_t>> rows(const Program& program, int rank) {
  const medley::DevicePlace place = device_places(program).at(static_cast<size_t>(rank));
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const auto& [first, count] :
       rows_of(program.stages[static_cast<size_t>(place.stage)], place.index))
    pairs.emplace_back(first, count);
  return pairs;
}

// Returns by name a device's reads of a batch: rows by micro-batch, none for inputs without rows.
std::vector<std::pair<std::string, std::vector<std::pair<int64_t, int64_t>>>> reads(
    const Program& program, int rank) {
  const medley::DevicePlace place = device_places(program).at(static_cast<size_t>(rank));
  const medley::LoweredStage& stage = program.stages[static_cast<size_t>(place.stage)];
  std::vector<std::pair<std::string, std::vector<std::pair<int64_t, int64_t>>>> all;
  for (const medley::PlacedValue& input : stage.inputs) {
    if (input.input.kind != medley::InputKind::kBatch) continue;
    auto& [name, rows] = all.emplace_back();
    name = input.input.name;
    for (size_t m = 0; m < stage.tables.size(); ++m)
      if (const auto read = rows_of(stage, input, place.index, m))
        rows.emplace_back(read->first, read->count);
  }
  return all;
}

// Returns the rows that each device computes, in the order of the ranks. Devices that share the
// work on a row have a part of it each.
std::vector<double> computed_rows(const Program& program) {
  std::vector<double> all;
  for (const medley::LoweredStage& stage : program.stages) {
    const auto outer = static_cast<size_t>(stage.mesh[0]);
    const size_t inner = stage.devices.size() / outer;
    for (size_t d = 0; d < stage.devices.size(); ++d) {
      double rows = 0;
      for (const medley::Microbatch& each : stage.microbatches)
        rows += each.lengths.empty() ? static_cast<double>(each.rows) / static_cast<double>(outer)
                                     : static_cast<double>(each.lengths[d / inner]);
      all.push_back(rows / static_cast<double>(inner));
    }
  }
  return all;
}

}  // namespace

void init_program(nb::module_& m) {
  nb::class_<Program>(m, "Program", "A lowered plan: what every device executes.")
      .def("__init__",
           &make_program,
           nb::sig("def __init__(self, graph: Graph, plan: Plan, cluster: Cluster, "
                   "optimizer: Optimizer = ..., keep_gradients: bool = False, "
                   "commit: bool = False) -> None"),
           "graph"_a,
           "plan"_a,
           "cluster"_a,
           "optimizer"_a = medley::Optimizer(),
           "keep_gradients"_a = false,
           "commit"_a = false,
           "Raises ValueError where plan, graph and cluster do not fit each other. `commit`: "
           "a step that fails can be taken back, or finished without the others.")
      .def_prop_ro("devices", &devices, "The devices of the cluster by rank.")
      .def_prop_ro("groups",
                   &medley::groups_of,
                   "The sets of devices of the cluster that communicate, each in rising order.")
      .def("rows",
           &rows,
           "rank"_a,
           "(first, number) of the rows of the global batch that a device needs, by micro-batch.")
      .def("reads",
           &reads,
           "rank"_a,
           "By name, what a device reads of a batch: (first, number) of rows, by micro-batch.")
      .def("computed_rows", &computed_rows, "By rank, how many rows of a batch a device computes.")
      .def("isomorphic",
           &isomorphic,
           nb::sig("def isomorphic(self, graph: Graph, other: Graph, plan: Plan, cluster: Cluster, "
                   "optimizer: Optimizer, keep_gradients: bool = False, "
                   "commit: bool = False) -> Program"),
           "graph"_a,
           "other"_a,
           "plan"_a,
           "cluster"_a,
           "optimizer"_a,
           "keep_gradients"_a = false,
           "commit"_a = false,
           "The program of `other`, which is the model of `graph`, that this one is of, at other "
           "sizes. Raises ValueError where they differ in more than sizes.")
      .def("with_rows",
           &medley::with_rows,
           "rows"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "The program of a batch of fewer rows.")
      .def("text", [](const Program& program) { return print(program); })
      .def("hash", [](const Program& program) { return hash(program); });

  m.def(
      "lower_text",
      [](const Graph& graph, const medley::Plan& plan, const medley::Cluster& cluster) {
        return print(lower(graph, plan, cluster, medley::Optimizer{}));
      },
      nb::arg("graph"),
      nb::arg("plan"),
      nb::arg("cluster"),
      "The lowered program of a plan with AdamW, as text.");
  m.def(
      "communications",
      [](const Graph& graph, const medley::Plan& plan, const medley::Cluster& cluster) {
        const medley::Program program = lower(graph, plan, cluster, medley::Optimizer{});
        std::vector<std::string> names;
        for (const medley::LoweredStage& stage : program.stages)
          for (const medley::Communication& each : stage.communications) names.push_back(each.name);
        return names;
      },
      nb::arg("graph"),
      nb::arg("plan"),
      nb::arg("cluster"),
      "The names of all communications of one step of a plan, stage after stage.");
  m.def(
      "memory_use",
      [](const Graph& graph, const medley::Plan& plan, const medley::Cluster& cluster, int device) {
        const medley::Program program = lower(graph, plan, cluster, medley::Optimizer{});
        const medley::MemoryUse use = memory_uses(program).at(static_cast<size_t>(device)).use;
        return std::make_tuple(use.persistent, use.peak, use.peak_at);
      },
      nb::arg("graph"),
      nb::arg("plan"),
      nb::arg("cluster"),
      nb::arg("device"),
      "(persistent bytes, peak bytes, where the peak is) of the plan's device of this index, "
      "counted over all its stages.");
  m.def(
      "fallbacks",
      [](const Graph& graph) { return medley::fallbacks(graph, medley::factorize(graph)); },
      nb::arg("graph"),
      "Ops without a rule that fits, whose result is not free of batch and parameters.");
  m.def(
      "row_coupling",
      [](const Graph& graph) { return medley::row_coupling(graph, medley::factorize(graph)); },
      nb::arg("graph"),
      "Why rows of the batch are not independent, such as \"rows meet in /mm#0\"; empty if they "
      "are.");
}
