// A program's placements as boxes (medley/boxes): the offsets and lengths in its tables are those
// of its placements and parts, and all stages with a value agree about it.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/boxes/cells.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/complete.h"
#include "medley/lower/lower.h"
#include "medley/testing/random_plan.h"

namespace medley {
namespace {

constexpr size_t kFirst = 0;  // micro-batch

using Table = std::vector<int64_t>;

FactorSizes factors_of(const PlacedValue& placed, const Table& table) {
  FactorSizes sizes;
  for (const std::vector<Size>& dim : placed.factors)
    for (const Size& factor : dim) sizes.push_back(evaluate(factor, table));
  return sizes;
}

Box box_in_table(const PlacedValue& placed, const Table& table) {
  Box box = whole_box(factors_of(placed, table));
  for (const PlacedValue::Cut& cut : placed.cuts) {
    const int64_t offset = evaluate(cut.offset, table);
    box[at(cut.position)] = {offset, offset + evaluate(cut.length, table)};
  }
  return box;
}

Layout layout_of(const LoweredStage& stage, const PlacedValue& placed, const Microbatch& rows) {
  const FactorSizes factors = factors_of(placed, stage.tables[kFirst][0]);
  std::vector<CutPoints> points(stage.mesh.size());
  for (size_t axis = 0; axis < stage.mesh.size(); ++axis) {
    const AxisPlacement& placement = placed.placement[axis];
    if (placement.holding != Holding::kSharded) continue;
    const Part& part = stage.symbols.parts()[at(placement.part)];
    const auto cut = [&](int64_t size) {
      return points_of(part_lengths(part, size, static_cast<int>(stage.mesh[axis]), rows));
    };
    const int64_t size = factors[at(placement.position)];
    if (axis == 0 || !placed.placement[0].cuts(placement.position)) {
      points[axis] = {cut(size)};
      continue;
    }
    const std::vector<int64_t>& outer = points[0][0];
    for (size_t i = 0; i + 1 < outer.size(); ++i)
      points[axis].push_back(cut(outer[i + 1] - outer[i]));
  }
  return layout_of(factors, placed.placement, stage.mesh, points);
}

// By name, every layout of a parameter, a buffer or a gradient.
using Layouts = std::map<std::string, std::vector<Layout>>;

void compare_with_tables(const LoweredStage& stage,
                         const Microbatch& rows,
                         const std::vector<PlacedValue>& all,
                         const std::string& what,
                         Layouts& found) {
  for (const PlacedValue& placed : all) {
    SCOPED_TRACE(placed.input.name);
    const Layout layout = layout_of(stage, placed, rows);
    EXPECT_NO_THROW(verify(layout, placed.input.name));
    for (size_t d = 0; d < stage.devices.size(); ++d) {
      const Box box = box_in_table(placed, stage.tables[kFirst][d]);
      if (layout.box_of[d] == kNoBox)
        ASSERT_EQ(volume(box), 0) << "device " << d;
      else
        ASSERT_EQ(box, layout.boxes[at(layout.box_of[d])]) << "device " << d;
    }
    if (placed.input.kind == InputKind::kParameter || placed.input.kind == InputKind::kBuffer)
      found[what + placed.input.name].push_back(layout);
  }
}

TEST(Layouts, RandomProgramsMatchTheirTables) {
  Cluster cluster;
  cluster.pools = {{"a", 6, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  std::vector<std::string> names;
  for (const Device& device : cluster.devices) names.push_back(device.name);
  size_t several = 0;
  for (const char* path : {"tests/data/mlp.graph", "python/tests/golden/gpt.graph"}) {
    const Graph graph = run_passes(parse_graph(LocalFiles().read(path), path));
    for (uint64_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(fmt::format("{} {}", path, seed));
      const Plan plan =
          seed % 2 ? random_plan(graph, names, 12, seed) : random_pipeline(graph, names, 12, seed);
      const Program program = lower(graph, plan, cluster, {});
      Layouts found;
      for (size_t s = 0; s < program.stages.size(); ++s) {
        const LoweredStage& stage = program.stages[s];
        const Microbatch rows = microbatches_of(plan.pipelines[0], s)[kFirst];
        compare_with_tables(stage, rows, stage.inputs, "", found);
        compare_with_tables(stage, rows, stage.gradients, "gradient ", found);
      }
      // Several stages have a tied weight, each the whole of it.
      for (const auto& [name, layouts] : found) {
        several += layouts.size() > 1 ? 1 : 0;
        for (const Cell& cell : cells_of(layouts).cells)
          EXPECT_THAT(cell.boxes, testing::Each(testing::Ge(0))) << name;
      }
    }
  }
  EXPECT_GT(several, 0);
}

}  // namespace
}  // namespace medley
