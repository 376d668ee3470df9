// Lowered programs as text and figures, for explain and the tests.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "medley/graph/graph.h"
#include "medley/program/lower.h"
#include "medley/program/memory.h"
#include "medley/sharding/coupling.h"

namespace nb = nanobind;

void init_program(nb::module_& m) {
  using medley::Graph;

  m.def(
      "lower_text",
      [](const Graph& graph, const std::string& plan, const medley::Cluster& cluster) {
        return print(lower(graph, medley::parse_plan(plan, "plan"), cluster, medley::Optimizer{}));
      },
      nb::arg("graph"),
      nb::arg("plan"),
      nb::arg("cluster"),
      "The lowered program of a plan (JSON) with AdamW, as text.");
  m.def(
      "communications",
      [](const Graph& graph, const std::string& plan, const medley::Cluster& cluster) {
        const medley::Program program =
            lower(graph, medley::parse_plan(plan, "plan"), cluster, medley::Optimizer{});
        std::vector<std::string> names;
        for (const medley::Communication& each : program.stages[0].communications)
          names.push_back(each.name);
        return names;
      },
      nb::arg("graph"),
      nb::arg("plan"),
      nb::arg("cluster"),
      "The names of all communications of one step of a plan (JSON), in order.");
  m.def(
      "memory_use",
      [](const Graph& graph, const std::string& plan, const medley::Cluster& cluster, int device) {
        const medley::Program program =
            lower(graph, medley::parse_plan(plan, "plan"), cluster, medley::Optimizer{});
        const medley::MemoryUse use = memory_use(program.stages[0], device);
        return std::make_tuple(use.persistent, use.peak, use.peak_at);
      },
      nb::arg("graph"),
      nb::arg("plan"),
      nb::arg("cluster"),
      nb::arg("device"),
      "(persistent bytes, peak bytes, where the peak is) of the plan's device of this index.");
  m.def(
      "fallbacks",
      [](const Graph& graph) { return medley::fallbacks(graph, medley::factorize(graph)); },
      nb::arg("graph"),
      "Ops without a rule that fits, whose result is not free of batch and parameters.");
  m.def(
      "row_coupling",
      [](const Graph& graph) { return medley::row_coupling(graph, medley::factorize(graph)); },
      nb::arg("graph"),
      "The op at which rows of the batch meet; empty if they are independent.");
}
