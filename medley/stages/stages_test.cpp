#include "medley/stages/stages.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <fstream>
#include <numeric>
#include <sstream>

#include "medley/base/error.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/graph/verify.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// Two blocks, the head tied to the embedding.
Graph gpt_model() {
  std::ifstream file("python/tests/golden/gpt.graph");
  std::stringstream text;
  text << file.rdbuf();
  return run_passes(parse_graph(text.str(), "gpt.graph"));
}

struct CutAt {
  Graph graph;
  Positions positions;
  Partition parts;
};

// Cuts the graph so that the second stage begins with the op `first`.
CutAt cut_at(Graph graph, const std::string& first) {
  CutAt cut{std::move(graph), {}, {}};
  cut.positions = place(cut.graph);
  const std::vector<std::string> names = stable_names(cut.graph);
  std::vector<int32_t> cuts;
  for (size_t p = 0; p < cut.positions.sequence.size(); ++p)
    if (names[at(cut.positions.sequence[p])] == first) cuts.push_back(static_cast<int32_t>(p));
  cut.parts = partition(cut.graph, cut.positions, cuts, names);
  return cut;
}

std::vector<std::string> sent(const Partition& parts) {
  std::vector<std::string> names;
  for (const Transfer& transfer : parts.transfers)
    names.push_back(transfer.name + (transfer.from == 0 ? " up" : " down"));
  return names;
}

std::vector<std::string> computed(const CutAt& cut, size_t stage) {
  const std::vector<std::string> all = stable_names(cut.graph);
  std::vector<std::string> names;
  for (OpId id : cut.parts.ops[stage]) names.push_back(all[at(id)]);
  return names;
}

TEST(Stages, BetweenBlocksTheResidualGoesUpAndItsGradientDown) {
  const CutAt cut = cut_at(gpt_model(), "blocks.1.norm1/native_layer_norm#0");
  EXPECT_THAT(sent(cut.parts), ElementsAre("blocks.0/add#1 up", "blocks.1.norm1/~add#0 down"));
  const Boundary both = boundary(cut.parts, 0);
  EXPECT_THAT(total_bytes(cut.graph, both.up), ElementsAre(Size(32 * 64 * 4) * Size::of(0)));
  EXPECT_EQ(evaluate(total_bytes(cut.graph, both.down), {3}), 3 * 32 * 64 * 4);
}

// Both ends of the model read the table of tokens, so each computes a part of its gradient.
TEST(Stages, TiedWeightsHaveAPartOfTheGradientInEachStage) {
  const CutAt cut = cut_at(gpt_model(), "blocks.1.norm1/native_layer_norm#0");
  EXPECT_THAT(cut.parts.tied, ElementsAre(Tied{"tokens.weight", {0, 1}, {0, 1}}));
  for (int s : {0, 1}) {
    const StageGraph stage = stage_graph(cut.graph, cut.parts, s);
    EXPECT_THAT(stage.graph.outputs,
                testing::Contains(testing::AllOf(Field(&Output::kind, OutputKind::kGradient),
                                                 Field(&Output::name, "tokens.weight"))));
  }
}

// The cut is after the addition of a bias. Its gradient is the sum of the incoming gradient, and is
// summed in the bias's stage, not sent.
TEST(Stages, GradientsOfParametersAreMadeWhereTheParametersAre) {
  const CutAt cut = cut_at(gpt_model(), "blocks.0/add#1");
  EXPECT_THAT(computed(cut, 0), testing::Contains("blocks.0.mlp.down/~sum#0"));
  EXPECT_THAT(cut.parts.tied, ElementsAre(Field(&Tied::parameter, "tokens.weight")));
}

// The labels, the normaliser and the positions are available without being sent.
TEST(Stages, BatchOnlyValuesAreComputedByTheirReader) {
  const CutAt cut = cut_at(gpt_model(), "/nll_loss_forward#0");
  EXPECT_THAT(sent(cut.parts), ElementsAre("/_log_softmax#0 up", "/~nll_loss_backward#0 down"));
  EXPECT_THAT(computed(cut, 1),
              testing::IsSupersetOf({"/view#0", "/ne#0", "/sum#0", "/~mean_loss_backward#0"}));
}

TEST(Stages, EveryOpMayBeAStage) {
  const Graph graph = gpt_model();
  const Positions positions = place(graph);
  std::vector<int32_t> cuts(positions.sequence.size() - 1);
  std::iota(cuts.begin(), cuts.end(), 1);
  const Partition parts = partition(graph, positions, cuts, stable_names(graph));
  std::vector<bool> there(graph.ops.size(), false);
  for (size_t s = 0; s < parts.ops.size(); ++s) {
    const StageGraph stage = stage_graph(graph, parts, static_cast<int>(s));
    verify(stage.graph);
    EXPECT_EQ(stage.values.size(), stage.graph.values.size());
    for (OpId id : stage.ops) there[at(id)] = true;
  }
  // No stage adds the two parts of the tied gradient.
  EXPECT_EQ(std::count(there.begin(), there.end(), false), 1);
  EXPECT_THAT(boundary(parts, 0).down, testing::SizeIs(1));
}

// Values sent up and down are half as wide as those in the stage.
constexpr char kCasts[] = R"(medley-graph 1
graph "casts"
symbols b
%0 = parameter "w" : f32[4]
%1 = parameter "v" : bf16[4]
%2 = batch "x" : f32[b, 4]
%3 = aten.mul.Tensor(%2, %0) : f32[b, 4] @forward ""
%4 = aten._to_copy.default(%3, bf16, none, none, none, false, none) : bf16[b, 4] @forward ""
%5 = aten.mul.Tensor(%4, %1) : bf16[b, 4] @forward ""
%6 = aten.sum.default(%5, none) : bf16[] @forward ""
%7 = aten.mul.Tensor(%5, %1) : bf16[b, 4] @backward ""
%8 = aten.mul.Tensor(%5, %4) : bf16[b, 4] @backward ""
%9 = aten.sum.dim_IntList(%8, [0], false, none) : bf16[4] @backward ""
%10 = aten._to_copy.default(%7, f32, none, none, none, false, none) : f32[b, 4] @backward ""
%11 = aten.mul.Tensor(%10, %2) : f32[b, 4] @backward ""
%12 = aten.sum.dim_IntList(%11, [0], false, none) : f32[4] @backward ""
output loss %6
output gradient "w" %12
output gradient "v" %9
)";

TEST(Stages, WideningCastComesAfterTheCrossing) {
  const CutAt cut = cut_at(parse_graph(kCasts, "casts"), "/mul#1");
  EXPECT_THAT(sent(cut.parts), ElementsAre("/_to_copy#0 up", "/~mul#0 down"));
  EXPECT_THAT(cut.parts.tied, IsEmpty());
}

std::string fault(const CutAt& cut) {
  try {
    verify(cut.graph, cut.positions, cut.parts);
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kUs);
    return error.what();
  }
  return "none";
}

TEST(Stages, TheVerifierSeesWhatIsWrong) {
  const CutAt right = cut_at(parse_graph(kCasts, "casts"), "/mul#1");
  EXPECT_EQ(fault(right), "none");
  CutAt wrong = right;
  wrong.parts.ops[0].erase(wrong.parts.ops[0].begin());
  EXPECT_THAT(fault(wrong), HasSubstr("op 0 aten.mul.Tensor in \"\": must be in a stage"));
  wrong = right;
  wrong.parts.ops[1].insert(wrong.parts.ops[1].begin(), 0);
  EXPECT_THAT(fault(wrong), HasSubstr("must be in one stage only"));
  wrong = right;
  wrong.parts.transfers.erase(wrong.parts.transfers.begin());
  EXPECT_THAT(fault(wrong), HasSubstr("%4 must be available in stage 1"));
  wrong = right;
  wrong.parts.transfers.push_back(wrong.parts.transfers[0]);
  EXPECT_THAT(fault(wrong), HasSubstr("must be sent once"));
  wrong = right;
  wrong.parts.transfers[0].value = 3;
  EXPECT_THAT(fault(wrong), HasSubstr("must be available in stage 1"));
  wrong = right;
  std::swap(wrong.parts.ops[0], wrong.parts.ops[1]);
  EXPECT_THAT(fault(wrong), HasSubstr("forward stages must ascend"));
  // Moved up, the cast's result would have to be sent down.
  wrong = right;
  std::erase(wrong.parts.ops[0], 7);
  wrong.parts.ops[1].push_back(7);
  EXPECT_THAT(fault(wrong), HasSubstr("%10 must be available in stage 0"));
}

}  // namespace
}  // namespace medley
