// A whole graph on one device: medley._runtime.GraphRunner.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "medley/executor/graph_runner.h"
#include "medley/executor/library.h"
#include "medley/graph/text.h"
#include "runtime_tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

void init_runtime_graph(nb::module_& m) {
  medley::register_kernels();
  nb::class_<medley::GraphRunner>(
      m, "GraphRunner", "Runs a graph as it is, on one device, keeping parameters and state.")
      .def(
          "__init__",
          [](medley::GraphRunner* self,
             const std::string& graph,
             std::vector<int64_t> symbols,
             const std::string& device,
             std::set<medley::OpId> watched) {
            new (self) medley::GraphRunner(medley::parse_graph(graph, "graph"),
                                           std::move(symbols),
                                           c10::Device(device),
                                           std::move(watched));
          },
          "graph"_a,
          "symbols"_a,
          "device"_a = "cpu",
          "watched"_a = std::set<medley::OpId>(),
          "`graph` is its text form, `symbols` the value of each of its symbols; run() also "
          "returns "
          "the results of the ops `watched`, as op:3:0 for result 0 of op 3.")
      .def("run",
           &medley::GraphRunner::run,
           "inputs"_a,
           "wanted"_a = std::set<std::string>(),
           nb::call_guard<nb::gil_scoped_release>(),
           "Takes and returns tensors by name, such as parameter:wte.weight, batch:input_ids, "
           "loss.");
}
