// medley._core: the layers of a graph, and the graphs of its stages.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "medley/graph/graph.h"
#include "medley/stages/layers.h"
#include "medley/stages/stages.h"

namespace nb = nanobind;

namespace {

using medley::Graph;

std::vector<Graph> cut(const Graph& graph, const std::vector<int32_t>& cuts) {
  const medley::Partition parts = partition(graph, medley::place(graph), cuts, stable_names(graph));
  std::vector<Graph> stages;
  for (size_t s = 0; s < parts.ops.size(); ++s)
    stages.push_back(stage_graph(graph, parts, static_cast<int>(s)).graph);
  return stages;
}

using LayerFields = std::tuple<int, int, int, int>;

std::vector<LayerFields> layers(const Graph& graph, int per_block) {
  std::vector<LayerFields> rows;
  for (const medley::Layer& layer :
       find_layers(graph, medley::place(graph), {.per_block = per_block}).layers)
    rows.emplace_back(layer.begin, layer.end, layer.block, layer.structure);
  return rows;
}

}  // namespace

void init_stages(nb::module_& m) {
  m.def(
      "num_positions",
      [](const Graph& graph) { return medley::place(graph).sequence.size(); },
      nb::arg("graph"),
      "Returns the number of forward ops between which a graph may be cut.");
  m.def("cut",
        &cut,
        nb::arg("graph"),
        nb::arg("cuts"),
        "Returns the graphs of the stages that begin at position 0 and at each of `cuts`.");
  m.def("layers",
        &layers,
        nb::arg("graph"),
        nb::arg("per_block") = 2,
        "Returns (first position, position behind the last, repeated block or -1, structure) of "
        "each layer.");
}
