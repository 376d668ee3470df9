// Plans of several stages, lowered.

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/program/calls.h"
#include "medley/program/lanes.h"

namespace medley {
namespace {

using testing::ElementsAre;

Graph read_file(const std::string& path) {
  return run_passes(parse_graph(LocalFiles().read(path), path));
}

Graph mlp_of_stages() { return read_file("tests/data/mlp.graph"); }

Cluster stage_devices(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

Mesh mesh_of(int first, int count) {
  Mesh mesh{{"x"}, {count}, {}};
  for (int i = 0; i < count; ++i) mesh.devices.push_back("a/" + std::to_string(first + i) + "/0");
  return mesh;
}

// Returns two stages that meet between the layers of the model.
Plan two_stages(std::vector<Microbatch> microbatches, int from, int to) {
  Plan plan;
  for (const Microbatch& microbatch : microbatches) plan.global_batch += microbatch.rows;
  Stage first, second;
  first.mesh = mesh_of(0, from);
  second.mesh = mesh_of(from, to);
  second.first = "fc2/mm#0";
  plan.pipelines.resize(1);
  plan.pipelines[0].microbatches = std::move(microbatches);
  plan.pipelines[0].stages = {first, second};
  return plan;
}

std::vector<std::string> names_of(const LoweredStage& stage) {
  std::vector<std::string> all;
  for (const Communication& communication : stage.communications) all.push_back(communication.name);
  return all;
}

// Returns the elements that a device sends each of the others in the first micro-batch.
std::vector<int64_t> sent(const LoweredStage& stage, const std::string& name, int device) {
  std::vector<int64_t> elements;
  for (const Communication& communication : stage.communications)
    if (communication.name == name)
      for (const Size& size : communication.send)
        elements.push_back(evaluate(size, stage.tables[0][at(device)]));
  return elements;
}

TEST(LowerStages, OnlyActivationsAndTheirGradientsTravel) {
  const Program program =
      lower(mlp_of_stages(), two_stages({{4, {4}}, {4, {4}}}, 1, 1), stage_devices(2), {});
  ASSERT_EQ(program.stages.size(), 2);
  EXPECT_THAT(names_of(program.stages[0]),
              ElementsAre("transfer fc2/~mm#0",
                          "transfer act/relu#0",
                          "all_reduce norm/sum over stages",
                          "all_reduce loss over stages"))
      << print(program);
  EXPECT_THAT(names_of(program.stages[1]),
              ElementsAre("transfer act/relu#0",
                          "transfer fc2/~mm#0",
                          "all_reduce norm/sum over stages",
                          "all_reduce loss over stages"));
  // 1F1B: the first stage has two micro-batches in flight.
  EXPECT_THAT(program.stages[0].calls,
              ElementsAre(Call{FunctionKind::kForward, 0},
                          Call{FunctionKind::kForward, 1},
                          Call{FunctionKind::kBackward, 0},
                          Call{FunctionKind::kBackwardLast, 1},
                          Call{FunctionKind::kUpdate, 0}));
}

// The forward phase alone: a loss and a metric of the last stage, which both stages then have.
TEST(LowerStages, MetricsAreSummedAsTheLossIs) {
  Graph graph = mlp_of_stages();
  graph.outputs.push_back({OutputKind::kMetric, "squares", graph.outputs[0].value});
  const Program program =
      lower(forward_only(graph), two_stages({{4, {4}}, {4, {4}}}, 1, 1), stage_devices(2), {});
  for (const LoweredStage& stage : program.stages) {
    EXPECT_THAT(names_of(stage),
                ElementsAre("transfer act/relu#0",
                            "all_reduce loss over stages",
                            "all_reduce squares over stages"));
    ASSERT_EQ(stage.metrics.size(), 1u);
    EXPECT_THAT(reported(stage), ElementsAre(stage.loss, stage.metrics.at("squares")));
  }
}

// A weight is divided by heads, which only the view in the next stage defines: evaluation has no
// gradient of the view in the weight's stage.
TEST(LowerStages, AViewInAnotherStageSplitsTheWeight) {
  const Graph graph = parse_graph(R"(medley-graph 1
graph "g"
symbols b
%0 = parameter "w" : f32[8, 12]
%1 = batch "x" : f32[b, 8]
%2 = aten.mm.default(%1, %0) : f32[b, 12] @forward "projection"
%3 = aten.view.default(%2, [b, 4, 3]) : f32[b, 4, 3] @forward "heads"
%4 = aten.sum.default(%3, none) : f32[] @forward "heads"
output loss %4
)",
                                  "g");
  Plan plan = two_stages({{4, {}}}, 2, 1);
  plan.parts = {{"heads", {3, 1}, {}}};
  plan.pipelines[0].stages[0].placements = {{"w", "S(1.0, heads)"}};
  plan.pipelines[0].stages[0].ops = {{"projection/mm#0", "n.0 heads"}};
  plan.pipelines[0].stages[1].first = "heads/view#0";
  const Program program = lower(graph, plan, stage_devices(3), {});
  EXPECT_THAT(sent(program.stages[0], "transfer projection/mm#0", 0), ElementsAre(0, 0, 4 * 9));
  EXPECT_THAT(sent(program.stages[0], "transfer projection/mm#0", 1), ElementsAre(0, 0, 4 * 3));
}

// The drawing of crossing.h: rows 3 + 1 become 2 + 2.
TEST(LowerStages, EveryDeviceSendsWhatBothHave) {
  Plan plan = two_stages({{4, {3, 1}}}, 2, 2);
  plan.pipelines[0].stages[1].rows = {1, 1};
  const Program program = lower(mlp_of_stages(), plan, stage_devices(4), {});
  const std::string activations = "transfer act/relu#0", gradients = "transfer fc2/~mm#0";
  EXPECT_THAT(sent(program.stages[0], activations, 0), ElementsAre(0, 0, 2 * 32, 1 * 32));
  EXPECT_THAT(sent(program.stages[0], activations, 1), ElementsAre(0, 0, 0, 1 * 32));
  EXPECT_THAT(sent(program.stages[1], gradients, 0), ElementsAre(0, 0, 2 * 32, 0));
  EXPECT_THAT(sent(program.stages[1], gradients, 1), ElementsAre(0, 0, 1 * 32, 1 * 32));
}

// A stage with all rows on every device receives each row once, and gathers them itself.
TEST(LowerStages, EachValueIsSentOnce) {
  const Program program =
      lower(mlp_of_stages(), two_stages({{4, {3, 1}}}, 2, 2), stage_devices(4), {});
  int64_t elements = 0;
  for (int device : {0, 1})
    for (int64_t each : sent(program.stages[0], "transfer act/relu#0", device)) elements += each;
  EXPECT_EQ(elements, 4 * 32);
  EXPECT_THAT(names_of(program.stages[1]), testing::Contains("all_gather act/relu#0"));
}

// The second stage sends the gradient of its input, and then computes its weight gradients.
TEST(LowerStages, GradientsOfWeightsMayComeLater) {
  Plan plan = two_stages(std::vector<Microbatch>(3, {4, {4}}), 1, 1);
  const Program whole = lower(mlp_of_stages(), plan, stage_devices(2), {});
  plan.pipelines[0].deferred_weights = {0, 2};
  const Program late = lower(mlp_of_stages(), plan, stage_devices(2), {});
  EXPECT_EQ(late.stages[0].calls, whole.stages[0].calls);
  const LoweredStage& stage = late.stages[1];
  std::vector<std::string> calls;
  std::vector<Call> turns;
  for (const Call& call : stage.calls)
    if (call.function == FunctionKind::kForward || is_backward(call.function)) {
      turns.push_back(call);
      calls.push_back(to_string(call) + (call.begins() ? "" : ", rest"));
    }
  EXPECT_THAT(calls,
              ElementsAre("forward 0",
                          "backward 0",
                          "forward 1",
                          "backward 1",
                          "backward 0, rest",
                          "forward 2",
                          "backward 2",
                          "backward 1, rest",
                          "backward 2, rest"));
  const auto ops_of = [&](const Call& call) {
    std::vector<std::string> names;
    for (const Step& step : steps_of(stage, call))
      if (const auto* segment = std::get_if<Segment>(&step))
        for (OpId op : segment->ops) names.push_back(stage.graph.ops[at(op)].name);
    return names;
  };
  EXPECT_THAT(ops_of(turns[1]), testing::Not(testing::Contains("medley.accumulate.default")));
  EXPECT_THAT(ops_of(turns[4]), testing::Contains("medley.accumulate.default"));
  // The inputs of weight gradients are kept for two micro-batches instead of one.
  EXPECT_GT(memory_use(stage, 0).peak, memory_use(whole.stages[1], 0).peak);
}

TEST(LowerStages, ReceiptsAreInTheOrderOfMicrobatches) {
  const Program program = lower(
      mlp_of_stages(), two_stages({{1, {1}}, {1, {1}}, {2, {2}}}, 1, 1), stage_devices(2), {});
  for (const LoweredStage& stage : program.stages)
    for (const auto& [lane, all] : receipts(stage)) {
      ASSERT_EQ(all.size(), 3);
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_EQ(stage.calls[all[i].call].microbatch, static_cast<int>(i));
    }
}

// More micro-batches in flight keep more saved values, and more receives posted ahead.
TEST(LowerStages, MemoryGrowsWithWhatIsInFlight) {
  Plan plan = two_stages(std::vector<Microbatch>(8, {4, {4}}), 1, 1);
  std::vector<int64_t> peaks;
  for (int64_t count : {1, 2, 4, 8}) {
    plan.pipelines[0].in_flight = {count, 1};
    peaks.push_back(
        memory_use(lower(mlp_of_stages(), plan, stage_devices(2), {}).stages[0], 0).peak);
  }
  const int64_t saved = 4 * 32 * 4;  // the activations of a micro-batch, kept for its backward
  EXPECT_GE(peaks[1], peaks[0] + saved);
  EXPECT_GE(peaks[2], peaks[1] + 2 * saved);
  EXPECT_GE(peaks[3], peaks[2] + 4 * saved);
}

// Both ends of the model read the table of tokens. A stage's position matters to the last one, and
// its recomputation to each.
TEST(LowerStages, CommonPartOfPlansIsPreparedOnce) {
  const GraphAnalysis analysis = analyse(read_file("python/tests/golden/gpt.graph"), {});
  PreparedStages prepared(analysis);
  const char *first = "blocks.1.norm1/native_layer_norm#0", *head = "norm/native_layer_norm#0";
  for (const std::vector<std::string>& begins :
       std::vector<std::vector<std::string>>{{first}, {first, head}, {head}, {first}})
    for (const char* recompute : {"none", "all", "blocks"})
      for (const int in_flight : {1, 2}) {
        Plan plan;
        plan.global_batch = 4;
        plan.pipelines.resize(1);
        Pipeline& pipeline = plan.pipelines[0];
        pipeline.microbatches = {{2, {}}, {2, {}}};
        for (size_t s = 0; s <= begins.size(); ++s) {
          Stage& stage = pipeline.stages.emplace_back();
          stage.mesh = mesh_of(static_cast<int>(s), 1);
          if (s > 0) stage.first = begins[s - 1];
          stage.recompute = recompute;
          pipeline.in_flight.push_back(s == 0 ? in_flight : 1);
        }
        const Cluster cluster = stage_devices(3);
        EXPECT_EQ(print(lower(prepared, plan, cluster)), print(lower(analysis, plan, cluster)))
            << begins.size() << " " << begins[0] << " " << recompute << " " << in_flight;
      }
}

}  // namespace
}  // namespace medley
