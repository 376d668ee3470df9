// The cells of 1,000 weights that several meshes store in different layouts, and the runs of all
// cells in their holders' tensors. `devices`: of all meshes together.

#include <benchmark/benchmark.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/boxes/cells.h"
#include "medley/boxes/runs.h"

namespace medley {
namespace {

constexpr int kValues = 1000;

std::vector<int64_t> even_points(int64_t size, int64_t devices) {
  std::vector<int64_t> points;
  for (int64_t i = 0; i <= devices; ++i) points.push_back(size * i / devices);
  return points;
}

// A fused weight of q, k and v, 96 heads of 128 by 12,288 columns.
const FactorSizes kFactors{3, 96, 128, 12288};

Layout by_heads(int64_t devices) {
  return layout_of(kFactors, {sharded(1, 0)}, {devices}, {{even_points(96, devices)}});
}
Layout by_columns(int64_t devices) {
  return layout_of(kFactors, {sharded(3, 0)}, {devices}, {{even_points(12288, devices)}});
}
// Returns the layout of a stage that knows no heads.
Layout by_rows(int64_t devices) {
  return layout_of({36864, 12288}, {sharded(0, 0)}, {devices}, {{even_points(36864, devices)}});
}
Layout in_copies(int64_t copies, int64_t devices) {
  return layout_of(kFactors,
                   {replicated(), sharded(1, 0)},
                   {copies, devices / copies},
                   {{}, {even_points(96, devices / copies)}});
}
Layout sums(int64_t devices) { return layout_of(kFactors, {partial_sum()}, {devices}, {{}}); }

// Returns pipelines with tensor parallelism of 8, 6 and 4 in replicas, and a whole one that sums.
std::vector<Layout> usual(int64_t devices) {
  const int64_t each = devices / 4;
  return {in_copies(each / 8, each), in_copies(each / 4, each), by_heads(each), sums(each)};
}
// Returns heads, columns, and rows across heads: cells are many and small.
std::vector<Layout> unlike(int64_t devices) {
  return {by_heads(devices / 4), by_columns(devices / 4), by_rows(devices / 2)};
}

using Maker = std::vector<Layout> (*)(int64_t devices);

void cells(benchmark::State& state, Maker make) {
  int64_t found = 0;
  for (auto _ : state) {
    found = 0;
    for (int value = 0; value < kValues; ++value)
      found += std::ssize(cells_of(make(state.range(0))).cells);
  }
  state.counters["cells"] = static_cast<double>(found);
}

void runs(benchmark::State& state, Maker make) {
  const std::vector<Layout> layouts = make(state.range(0));
  const Cells all = cells_of(layouts);
  int64_t found = 0;
  for (auto _ : state) {
    found = 0;
    for (int value = 0; value < kValues; ++value)
      for (const Cell& cell : all.cells)
        for (size_t l = 0; l < layouts.size(); ++l) {
          const Box& shard = layouts[l].boxes[at(cell.boxes[l])];
          found += runs_in(layouts[l].factors, shard, all.factors, cell.box, 2).count();
        }
  }
  state.counters["runs"] = static_cast<double>(found);
}

BENCHMARK_CAPTURE(cells, usual, usual)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(cells, unlike, unlike)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(runs, usual, usual)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(runs, unlike, unlike)->Arg(64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace medley
