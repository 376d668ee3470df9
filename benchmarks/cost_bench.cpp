// The time of a cost model query: planners make hundreds of thousands.

#include <benchmark/benchmark.h>

#include "medley/cost/cost_model.h"
#include "medley/ops/one_op.h"

namespace medley {
namespace {

Cluster cluster() {
  const DeviceKind kind{"x", {{DType::kF32, 1e13}}, {{DType::kF32, 1e13}}, 1e9, 1e12, 5e-6};
  Cluster result;
  result.pools.push_back({"x", 1, 1, kind, false, 0});
  result.devices = list_devices(result.pools);
  return result;
}

Graph mm() {
  return one_op({"f32[b, 512]", "f32[512, 64]"}, "aten.mm.default(%0, %1) : f32[b, 64]");
}

CostModel measured(int64_t sizes) {
  const Graph graph = mm();
  Profile profile{"null", {}, {}, {}};
  for (int64_t b = 1; b <= sizes; ++b)
    profile.ops.push_back({"x", sized_op(graph, graph.ops[0], {b}), {5000 + 10 * b}, 1});
  return CostModel(cluster(), profile);
}

void ask(benchmark::State& state, const CostModel& costs, int64_t from) {
  const Graph graph = mm();
  const Cluster of = cluster();
  std::vector<int64_t> symbols{from};
  for (auto _ : state) {
    symbols[0] = symbols[0] % 1000 + from;
    benchmark::DoNotOptimize(costs.op(of.kind(0), graph, graph.ops[0], symbols));
  }
}

void analytic(benchmark::State& state) { ask(state, CostModel(cluster()), 1); }
void measured_exactly(benchmark::State& state) { ask(state, measured(2000), 1); }
void interpolated(benchmark::State& state) { ask(state, measured(2000), 3000); }
void sized(benchmark::State& state) {
  const Graph graph = mm();
  for (auto _ : state) benchmark::DoNotOptimize(sized_op(graph, graph.ops[0], {96}));
}
void construct(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(measured(state.range(0)));
}
void read_profile(benchmark::State& state) {
  const Graph graph = mm();
  Profile profile{"null", {}, {}, {}};
  for (int64_t b = 1; b <= state.range(0); ++b)
    profile.ops.push_back({"x", sized_op(graph, graph.ops[0], {b}), {5000 + 10 * b}, 1});
  const std::string text = print(profile);
  for (auto _ : state) benchmark::DoNotOptimize(parse_profile(text, "p"));
}

BENCHMARK(analytic);
BENCHMARK(measured_exactly);
BENCHMARK(interpolated);
BENCHMARK(sized);
BENCHMARK(construct)->Arg(10'000)->Unit(benchmark::kMillisecond);
BENCHMARK(read_profile)->Arg(10'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace medley
