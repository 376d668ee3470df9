// medley._core.Graph: the text form, the hash, the verifier and the passes.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "medley/graph/graph.h"
#include "medley/graph/passes.h"
#include "medley/graph/quote.h"
#include "medley/graph/text.h"
#include "medley/graph/verify.h"
#include "medley/sharding/coupling.h"

namespace nb = nanobind;

namespace {

using medley::Graph;

using Described = std::tuple<std::string, std::string, std::string, std::string>;
using Timed = std::tuple<std::string, int64_t, int64_t, int64_t>;

Described describe(const Graph& graph,
                   const std::string& kind,
                   const std::string& name,
                   medley::ValueId value) {
  const medley::TensorType& type = graph.values.at(static_cast<size_t>(value)).type;
  std::string shape;
  for (const medley::Size& size : type.shape)
    shape += (shape.empty() ? "" : ", ") + to_string(size, graph.symbols);
  return {kind, name, std::string(to_string(type.dtype)), "[" + shape + "]"};
}

std::vector<Described> inputs(const Graph& graph) {
  std::vector<Described> rows;
  for (const medley::Input& input : graph.inputs)
    rows.push_back(describe(graph, to_string(input.kind), input.name, input.value));
  return rows;
}

std::vector<Described> outputs(const Graph& graph) {
  std::vector<Described> rows;
  for (const medley::Output& output : graph.outputs)
    rows.push_back(describe(graph, to_string(output.kind), output.name, output.value));
  return rows;
}

std::vector<std::string> parameter_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const medley::Input& input : graph.inputs)
    if (input.kind == medley::InputKind::kParameter) names.push_back(input.name);
  return names;
}

std::tuple<Graph, std::vector<Timed>> run_passes(const Graph& graph) {
  std::vector<medley::PassTime> times;
  Graph result = medley::with_step_sums(medley::run_passes(graph, &times));
  std::vector<Timed> rows;
  for (const medley::PassTime& time : times)
    rows.emplace_back(time.name, time.nanoseconds, time.ops_before, time.ops_after);
  return {std::move(result), std::move(rows)};
}

}  // namespace

void init_graph(nb::module_& m) {
  m.def(
      "quote",
      [](std::string_view text) {
        std::string quoted;
        medley::append_quoted(quoted, text);
        return quoted;
      },
      nb::arg("text"),
      "Returns a string between double quotes, as the text form of a graph writes it.");
  nb::class_<Graph>(m, "Graph", "A training graph: forward, loss and backward as functional ops.")
      .def_static("parse",
                  &medley::parse_graph,
                  nb::arg("text"),
                  nb::arg("file") = "<text>",
                  "Reads the text form; `file` is for error messages.")
      .def("text", &medley::print, "Returns the text form, which parses back equal.")
      .def("hash", &medley::hash, "Returns the SHA-256 of the canonical text.")
      .def("verify", &medley::verify, "Raises RuntimeError if an invariant does not hold.")
      .def("forward_only",
           &medley::forward_only,
           "Returns what it computes of a batch: loss and metrics, without gradients.")
      .def("run_passes",
           &run_passes,
           nb::call_guard<nb::gil_scoped_release>(),
           "Returns the rewritten graph and (pass, nanoseconds, ops before, ops after) of each.")
      .def("stable_names", &medley::stable_names, "Returns the name of each op that plans use.")
      .def_ro("name", &Graph::name)
      .def_ro("symbols", &Graph::symbols)
      .def_prop_ro("num_ops", [](const Graph& graph) { return graph.ops.size(); })
      .def_prop_ro("inputs", &inputs, "(kind, name, dtype, shape) of each input.")
      .def_prop_ro("outputs", &outputs, "(kind, name, dtype, shape) of each output.")
      .def_prop_ro("parameter_names", &parameter_names);
}
