// Functions only for tests and benchmarks in Python: random legal plans. Not in the wheel.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "medley/graph/text.h"
#include "medley/testing/random_plan.h"

namespace nb = nanobind;

namespace {

using Draw = medley::Plan (*)(const medley::Graph& graph,
                              const std::vector<std::string>& devices,
                              int64_t global_batch,
                              uint64_t seed);

template <Draw draw>
std::string drawn(const std::string& graph,
                  const std::vector<std::string>& devices,
                  int64_t global_batch,
                  uint64_t seed) {
  return print(draw(medley::parse_graph(graph, "graph"), devices, global_batch, seed));
}

std::string drawn_pipelines(const std::string& graph,
                            const std::vector<std::string>& devices,
                            int64_t global_batch,
                            uint64_t seed,
                            const std::optional<medley::Optimizer>& optimizer) {
  return print(medley::random_pipelines_for(optimizer.value_or(medley::Optimizer()),
                                            medley::parse_graph(graph, "graph"),
                                            devices,
                                            global_batch,
                                            seed));
}

}  // namespace

NB_MODULE(_testing, m) {
  m.doc() = "Fixtures of tests and benchmarks.";
  m.def("random_plan",
        drawn<medley::random_plan>,
        nb::arg("graph"),
        nb::arg("devices"),
        nb::arg("global_batch"),
        nb::arg("seed"),
        "A legal plan of a graph (text) drawn at random, as JSON.");
  m.def("random_pipeline",
        drawn<medley::random_pipeline>,
        nb::arg("graph"),
        nb::arg("devices"),
        nb::arg("global_batch"),
        nb::arg("seed"),
        "The same with several stages.");
  m.def("random_pipelines",
        drawn_pipelines,
        nb::arg("graph"),
        nb::arg("devices"),
        nb::arg("global_batch"),
        nb::arg("seed"),
        nb::arg("optimizer") = nb::none(),
        nb::sig("def random_pipelines(graph: str, devices: Sequence[str], global_batch: int, "
                "seed: int, optimizer: object | None = None) -> str"),
        "The same with several pipelines, for AdamW or another optimizer.");
}
