#include "medley/synthesis/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/planner/planner.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

class Fit : public ::testing::Test {
 protected:
  // Returns `devices` identical ones, one per node.
  static Cluster cluster_of(int devices, double memory_bytes) {
    DeviceKind kind;
    kind.name = "kind";
    kind.sustained = {{DType::kF32, 1e9}};
    kind.memory_bandwidth = 1e10;
    kind.memory_bytes = memory_bytes;
    Cluster made;
    made.pools = {{"pool", devices, 1, kind, false, 0}};
    made.networks = {{"lan", false, {"pool"}, 1e9, 1e-6, {}}};
    made.devices = list_devices(made.pools);
    return made;
  }

  static Graph mlp() { return parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph"); }

  std::string reason(const std::string& strategy, int64_t rows, int64_t microbatches) const {
    Request request{.graph = graph,
                    .cluster = cluster,
                    .strategy = strategy,
                    .global_batch = rows,
                    .devices = {},
                    .optimizer = {}};
    request.microbatches = microbatches;
    const Outcome outcome = plan(request);
    const auto* no = std::get_if<Infeasible>(&outcome);
    return no ? to_string(*no) : "it fits";
  }

  // Returns the number before the text.
  static int64_t number_before(const std::string& text, const std::string& what) {
    const size_t end = text.find(what);
    if (end == std::string::npos) return -1;
    const size_t start = text.find_last_not_of("0123456789", end - 1) + 1;
    return std::stoll(text.substr(start, end - start));
  }

  Graph graph = mlp();
  Cluster cluster = cluster_of(2, 64 << 10);
};

// The advice is exact: this many micro-batches fit, one less does not.
TEST_F(Fit, FewestMicrobatchesThatFit) {
  const std::string text = reason("data-parallel-even", 1000, 2);
  EXPECT_THAT(text, AllOf(HasSubstr("pool/0/0 (kind) needs "), HasSubstr(": it lacks ")));
  const int64_t enough = number_before(text, " micro-batches would fit");
  ASSERT_GT(enough, 2) << text;
  EXPECT_EQ(reason("data-parallel-even", 1000, enough), "it fits");
  EXPECT_NE(reason("data-parallel-even", 1000, enough - 1), "it fits");
}

// For any number of rows few micro-batch counts are tried: time and memory do not grow with the
// rows.
TEST_F(Fit, HugeBatchesAreRefusedSoon) {
  const auto says_what_fits =
      AllOf(HasSubstr("pool/0/0 (kind) needs "), HasSubstr("\n  a global batch of "));
  EXPECT_THAT(reason("hap", 100'000'000, 0), says_what_fits);
  EXPECT_THAT(reason("data-parallel-proportional", kMaxLength, 0), says_what_fits);
  EXPECT_THAT([&] { return reason("hap", 100'000'000, kMostMicrobatches + 1); },
              ThrowsMessage<Error>("microbatches: found 16385, expected 1 to 16384"));
}

// With cross-sample dependence micro-batches are impossible, so the advice is fewer rows.
TEST_F(Fit, LargestBatchOfACrossSampleModel) {
  graph = parse_graph(R"(medley-graph 1
graph "contrastive"
symbols b
%0 = batch "a" : f32[b, 4]
%1 = aten.t.default(%0) : f32[4, b] @forward ""
%2 = aten.mm.default(%0, %1) : f32[b, b] @forward ""
%3 = aten.sum.default(%2, none) : f32[] @forward ""
output loss %3
)",
                      "contrastive.graph");
  const std::string text = reason("data-parallel-even", 1000, 0);
  ASSERT_THAT(text, HasSubstr("\n  a global batch of "));
  const int64_t batch = number_before(text, " would fit");
  EXPECT_EQ(reason("data-parallel-even", batch, 0), "it fits");
  EXPECT_NE(reason("data-parallel-even", batch + 2, 0), "it fits");
}

// If a step's inputs alone do not fit, millions of micro-batches are not tried.
TEST_F(Fit, RowsThatNoCountMakesFitNeedASmallerBatch) {
  const std::string text = reason("data-parallel-even", 100'000'000, 0);
  ASSERT_THAT(text, HasSubstr("\n  a global batch of "));
  const int64_t batch = number_before(text, " would fit");
  EXPECT_GT(batch, 1);
  EXPECT_EQ(reason("data-parallel-even", batch, 0), "it fits");
  EXPECT_THAT(reason("hap", 100'000'000, 0), HasSubstr(" it lacks "));
}

// Short lines report the shortage, its location, the part independent of rows, and the advice.
TEST_F(Fit, SaysInFourLinesWhatLacksMemory) {
  EXPECT_THAT(reason("data-parallel-even", 1000, 2),
              MatchesRegex("pool/0/0 .kind. needs [^\n]* and has 64 KiB: it lacks [^\n]*\n"
                           "  needed in [^\n]*, for up to 250 rows in each of 2 micro-batches\n"
                           "  [^\n]* of it is for parameters and optimizer state\n"
                           "  [0-9]* micro-batches would fit"));
}

// Memory independent of rows needs more memory; all devices that lack it are counted.
TEST_F(Fit, ParametersThatDoNotFitNeedMemory) {
  cluster = cluster_of(5, 2e3);
  EXPECT_THAT(reason("data-parallel-even", 16, 0),
              AllOf(HasSubstr("for up to 1 row in each of"),
                    HasSubstr(" more on pool/0/0, "),
                    EndsWith(" and more on 2 others would do")));
}

TEST_F(Fit, ExactlyEnoughIsEnough) {
  const GraphAnalysis analysis = analyse(graph, {});
  const Request request{.graph = graph,
                        .cluster = cluster,
                        .strategy = "",
                        .global_batch = 40,
                        .devices = {},
                        .optimizer = {},
                        .cache = {.analysis = &analysis}};
  const Plan plan = empty_plan(request, {0, 1}, {20, 20}, 1);
  cluster.pools[0].kind.memory_bytes = 0;
  double low = 0, high = 1e6;
  while (high - low > 0.5) {
    cluster.pools[0].kind.memory_bytes = (low + high) / 2;
    (find_misfit(plan, request) ? low : high) = (low + high) / 2;
  }
  cluster.pools[0].kind.memory_bytes = std::ceil(low);
  EXPECT_FALSE(find_misfit(plan, request));
  cluster.pools[0].kind.memory_bytes = std::ceil(low) - 1;
  EXPECT_THAT(explain_misfit(plan, request).reason, EndsWith("it lacks 1 B"));
}

// In a pipeline the stage is named, for any stage.
TEST_F(Fit, TheStageThatLacksMemoryIsNamed) {
  const GraphAnalysis analysis = analyse(graph, {});
  const Request request{.graph = graph,
                        .cluster = cluster,
                        .strategy = "",
                        .global_batch = 40,
                        .devices = {},
                        .optimizer = {},
                        .cache = {.analysis = &analysis}};
  Plan plan = empty_plan(request, {0}, {40}, 4);
  Stage second;
  second.first = "fc2/addmm#0";
  second.mesh = {{"x"}, {1}, {"pool/1/0"}};
  plan.pipelines[0].stages.push_back(second);
  plan.pipelines[0].in_flight = {4, 4};
  EXPECT_FALSE(find_misfit(plan, request));
  cluster.pools.push_back(cluster.pools[0]);
  cluster.pools[1].kind.memory_bytes = 1e3;
  cluster.devices[1].pool = 1;
  EXPECT_THAT(to_string(explain_misfit(plan, request)),
              AllOf(HasSubstr("stage 1: pool/1/0 (kind) needs "),
                    HasSubstr(" for up to 10 rows in each of 4 micro-batches"),
                    HasSubstr(": it lacks ")));
}

// Several pipelines have their own micro-batches; their division of rows is no advice.
TEST_F(Fit, ThePipelineThatLacksMemoryIsNamed) {
  const GraphAnalysis analysis = analyse(graph, {});
  const Request request{.graph = graph,
                        .cluster = cluster,
                        .strategy = "",
                        .global_batch = 40,
                        .devices = {},
                        .optimizer = {},
                        .cache = {.analysis = &analysis}};
  Plan plan = empty_plan(request, {0}, {30}, 1);
  plan.global_batch = 40;
  plan.pipelines.push_back(empty_plan(request, {1}, {10}, 2).pipelines.front());
  EXPECT_FALSE(find_misfit(plan, request));
  cluster.pools.push_back(cluster.pools[0]);
  cluster.pools[1].kind.memory_bytes = 1e3;
  cluster.devices[1].pool = 1;
  EXPECT_THAT(to_string(explain_misfit(plan, request)),
              AllOf(HasSubstr("pipeline 1, stage 0: pool/1/0 (kind) needs "),
                    HasSubstr(" for up to 5 rows in each of 2 micro-batches"),
                    EndsWith(" more on pool/1/0 would do")));
}

TEST_F(Fit, MicrobatchFactorMatchesMemoryExcess) {
  const Cluster two = cluster_of(2, 100);
  EXPECT_EQ(times_microbatches(0, two, {0, 1}), 2);
  EXPECT_EQ(times_microbatches(599, two, {0, 1}), 2);
  EXPECT_EQ(times_microbatches(600, two, {0, 1}), 4);
  EXPECT_EQ(times_microbatches(3000, two, {0, 1}), 16);
}

}  // namespace
}  // namespace medley
