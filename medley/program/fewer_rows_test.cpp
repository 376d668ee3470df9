// Programs of batches with fewer rows than planned.

#include "medley/program/fewer_rows.h"

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/program/rows.h"
#include "medley/testing/random_plan.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 12;

Graph deep() {
  const std::string path = "tests/data/deep.graph";
  return run_passes(parse_graph(LocalFiles().read(path), path));
}

std::vector<std::string> names(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back("a/" + std::to_string(i) + "/0");
  return all;
}

Cluster some_devices(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

Plan whole(std::vector<Microbatch> microbatches, int count) {
  Plan plan;
  Stage stage;
  stage.mesh = {{"x"}, {count}, names(count)};
  for (const Microbatch& each : microbatches) plan.global_batch += each.rows;
  plan.pipelines = {{{}, std::move(microbatches), {stage}}};
  return plan;
}

// The tables are those of a plan for so many rows.
TEST(FewerRows, AreThoseOfAPlanForThem) {
  const Graph graph = deep();
  const Program planned = lower(graph, whole({{8, {6, 2}}, {4, {1, 3}}}, 2), some_devices(2), {});
  const Program expected = lower(graph, whole({{4, {3, 1}}, {2, {0, 2}}}, 2), some_devices(2), {});
  const Program found = with_rows(planned, 6);
  EXPECT_EQ(found.stages[0].tables, expected.stages[0].tables);
  EXPECT_EQ(with_rows(planned, kRows).stages[0].tables, planned.stages[0].tables);
}

// Verified programs of heterogeneous pipelines, including owners: with_rows() verifies its result.
TEST(FewerRows, RandomPipelinesNeverExceedThePlan) {
  const Graph graph = deep();
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Program planned =
        lower(graph, random_pipelines(graph, names(5), kRows, seed), some_devices(5), {});
    for (int64_t rows = 1; rows < kRows; ++rows) {
      const Program fewer = with_rows(planned, rows);
      for (size_t s = 0; s < fewer.stages.size(); ++s)
        for (size_t m = 0; m < fewer.stages[s].microbatches.size(); ++m) {
          const Microbatch& found = fewer.stages[s].microbatches[m];
          const Microbatch& most = planned.stages[s].microbatches[m];
          EXPECT_LE(found.rows, most.rows);
          for (size_t d = 0; d < most.lengths.size(); ++d)
            EXPECT_LE(found.lengths[d], most.lengths[d]);
        }
    }
  }
}

TEST(FewerRows, GiveEveryMicrobatchOneThatIsABatchOfItsOwn) {
  Program planned = lower(deep(), whole({{4, {4}}, {4, {4}}, {4, {4}}}, 1), some_devices(1), {});
  planned.microbatches_are_batches = true;
  try {
    (void)with_rows(planned, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("found 2 rows, expected one at least for each of 3"));
  }
}

}  // namespace
}  // namespace medley
