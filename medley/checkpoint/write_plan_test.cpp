#include "medley/checkpoint/write_plan.h"

#include <gmock/gmock.h>

#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/sharding/placement.h"

namespace medley {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;
using ::testing::SizeIs;

HeldValue value_of(const std::string& name,
                   std::vector<int64_t> shape,
                   std::vector<Layout> layouts) {
  HeldValue value{"parameter", name, DType::kF32, std::move(shape), {}};
  for (size_t s = 0; s < layouts.size(); ++s)
    value.stages.push_back({static_cast<int>(s), 0, std::move(layouts[s])});
  return value;
}

Layout copies(const FactorSizes& factors, int64_t devices) {
  return layout_of(factors, {replicated()}, {devices}, {{}});
}

Layout rows(const FactorSizes& factors, std::vector<int64_t> points) {
  const auto devices = std::ssize(points) - 1;
  return layout_of(factors, {sharded(0, 0)}, {devices}, {{std::move(points)}});
}

std::vector<int64_t> bytes_of(const WritePlan& planned) {
  std::vector<int64_t> bytes(planned.writers.size());
  for (const StoredValue& value : planned.values)
    for (size_t b = 0; b < value.boxes.size(); ++b)
      bytes[at(value.files[b])] += volume(value.boxes[b]) * bytes_per_element(value.dtype);
  return bytes;
}

// All store everything, and one value is most of it: it is cut by rows.
TEST(WritePlan, CopiesAreWrittenInEqualParts) {
  const WritePlan planned = plan_writes({value_of("large", {1000, 30}, {copies({1000, 30}, 4)}),
                                         value_of("small", {30}, {copies({30}, 4)})},
                                        {4},
                                        1 << 10);
  EXPECT_THAT(planned.writers, ElementsAre(0, 1, 2, 3));
  const int64_t share = (1000 * 30 + 30) * 4 / 4;
  EXPECT_THAT(bytes_of(planned), Each(Le(share + 30 * 4 + 30 * 4)));
  EXPECT_EQ(planned.values[0].boxes[0], (Box{{0, 250}, {0, 30}}));
}

// Halves here, thirds there: each cell is written by a device with all of it.
TEST(WritePlan, SeveralPipelinesWriteEachCellOnce) {
  const WritePlan planned = plan_writes(
      {value_of("w", {12, 2}, {rows({12, 2}, {0, 6, 12}), rows({12, 2}, {0, 4, 8, 12})})}, {2, 3});
  EXPECT_THAT(planned.values[0].boxes, SizeIs(4));
  int64_t elements = 0;
  for (const Box& box : planned.values[0].boxes) elements += volume(box);
  EXPECT_EQ(elements, 24);
  for (size_t w = 0; w < planned.writers.size(); ++w)
    for (const BoxWrite& each : planned.boxes[w])
      EXPECT_EQ(planned.writers[w], (each.holder == 0 ? 0 : 2) + each.device);
}

// Some devices may have none of the optimizer's state, and a stage none of a value.
TEST(WritePlan, DeviceWithoutValuesWritesNothing) {
  const WritePlan planned = plan_writes({value_of("w", {8}, {rows({8}, {0, 0, 8})})}, {2, 1});
  EXPECT_THAT(planned.writers, ElementsAre(1));
}

// A tensor is stored whole, whichever part of it is written.
TEST(WritePlan, WriterOfARowHoldsAllOfItsShard) {
  ProgramWritePlan planned{{value_of("large", {1000, 30}, {copies({1000, 30}, 2)}),
                            value_of("cut", {20}, {rows({20}, {0, 5, 20})})},
                           {2},
                           {}};
  planned.write_plan = plan_writes(planned.held, planned.devices, 1 << 10);
  EXPECT_THAT(held_bytes(planned), ElementsAre(4 * (30000 + 5), 4 * (30000 + 15)));
}

TEST(WritePlan, ElementWithoutHolderIsRefused) {
  HeldValue value = value_of("w", {8}, {rows({8}, {0, 4, 8})});
  value.stages[0].layout.boxes = {{{0, 4}}};
  value.stages[0].layout.box_of = {0, kNoBox};
  EXPECT_THROW(plan_writes({value}, {2}), Error);
}

}  // namespace
}  // namespace medley
