// A graph of 20,000 ops through all steps of a capture and a load. The budget is one second in
// total.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/graph/verify.h"

namespace medley {
namespace {

// Returns forward-only layers in the shape of a captured linear layer: nine ops each.
Graph layers(int num_layers) {
  std::string text =
      "medley-graph 1\ngraph \"bench\"\nsymbols b\n%0 = batch \"x\" : f32[b, 16, 8]\n";
  for (int i = 0; i < num_layers; ++i)
    text += fmt::format(
        "%{} = parameter \"h.{}.weight\" : f32[8, 8]\n%{} = parameter \"h.{}.bias\" : f32[8]\n",
        2 * i + 1,
        i,
        2 * i + 2,
        i);
  int next = 2 * num_layers + 1, x = 0;
  for (int i = 0; i < num_layers; ++i) {
    const auto op = [&](const std::string& call, const std::string& type) {
      text += fmt::format(
          "%{} = aten.{} : f32[{}] @forward \"h.{}\" at \"b.py:1\"\n", next, call, type, i);
      return next++;
    };
    const int t = op(fmt::format("t.default(%{})", 2 * i + 1), "8, 8");
    const int flat = op(fmt::format("view.default(%{}, [b*16, 8])", x), "b*16, 8");
    const int mm =
        op(fmt::format("addmm.default(%{}, %{}, %{}, 1, 1)", 2 * i + 2, flat, t), "b*16, 8");
    const int view = op(fmt::format("view.default(%{}, [b, 16, 8])", mm), "b, 16, 8");
    const int relu = op(fmt::format("relu.default(%{})", view), "b, 16, 8");
    const int copy = op(fmt::format("detach.default(%{})", relu), "b, 16, 8");
    const int swapped = op(fmt::format("transpose.int(%{}, 1, 2)", copy), "b, 8, 16");
    const int back = op(fmt::format("transpose.int(%{}, 1, 2)", swapped), "b, 16, 8");
    x = op(fmt::format("add.Tensor(%{}, %{}, 1)", back, x), "b, 16, 8");
  }
  text += fmt::format("%{} = aten.sum.default(%{}, none) : f32[] @forward \"\"\n", next, x);
  return parse_graph(text + fmt::format("output loss %{}\n", next), "bench");
}

const Graph& graph_of_20k_ops() {
  static const Graph graph = layers(2223);
  return graph;
}

void print_graph(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(print(graph_of_20k_ops()));
}

void parse(benchmark::State& state) {
  const std::string text = print(graph_of_20k_ops());
  for (auto _ : state) benchmark::DoNotOptimize(parse_graph(text, "bench"));
}

void hash_graph(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(hash(graph_of_20k_ops()));
}

void verify_graph(benchmark::State& state) {
  for (auto _ : state) verify(graph_of_20k_ops());
}

void run_all_passes(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(run_passes(graph_of_20k_ops()));
}

void everything(benchmark::State& state) {
  const std::string text = print(graph_of_20k_ops());
  for (auto _ : state) {
    const Graph graph = parse_graph(text, "bench");
    const Graph result = run_passes(graph);
    benchmark::DoNotOptimize(hash(graph));
    benchmark::DoNotOptimize(print(result));
  }
  state.counters["ops"] = static_cast<double>(graph_of_20k_ops().ops.size());
}

BENCHMARK(print_graph)->Unit(benchmark::kMillisecond);
BENCHMARK(parse)->Unit(benchmark::kMillisecond);
BENCHMARK(hash_graph)->Unit(benchmark::kMillisecond);
BENCHMARK(verify_graph)->Unit(benchmark::kMillisecond);
BENCHMARK(run_all_passes)->Unit(benchmark::kMillisecond);
BENCHMARK(everything)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace medley
