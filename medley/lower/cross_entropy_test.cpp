#include "medley/lower/cross_entropy.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/memory/memory.h"

namespace medley {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Returns logits of a matmul in 16 bits and their cross entropy in f32, as in autocast and
// transformers, with a view between the cast and the softmax. `more` also reads the
// log-probabilities.
std::string autocast_graph(int64_t classes, const std::string& more = "") {
  const std::string c = std::to_string(classes);
  std::string text =
      R"(medley-graph 1
graph "m"
symbols b
%0 = parameter "w" : bf16[C, 8]
%1 = batch "x" : bf16[b, 4, 8]
%2 = batch "y" : i64[b*4]
%3 = aten.t.default(%0) : bf16[8, C] @forward "" at "m.py:1"
%4 = medley.contract.default(%1, %3) : bf16[b, 4, C] @forward "" at "m.py:1"
%5 = aten._to_copy.default(%4, f32, none, none, none, false, none) : f32[b, 4, C] @forward "" at "m.py:2"
%6 = aten.view.default(%5, [b*4, C]) : f32[b*4, C] @forward "" at "m.py:3"
%7 = aten._log_softmax.default(%6, 1, false) : f32[b*4, C] @forward "" at "m.py:4"
%8, %9 = aten.nll_loss_forward.default(%7, %2, none, 2, -100) : f32[], f32[] @forward "" at "m.py:4"
)" + more +
      R"(%10 = aten.full.default(sizes[], 1.0, f32, none, none, none) : f32[] @backward "" at "m.py:4"
%11 = aten.nll_loss_backward.default(%10, %7, %2, none, 2, -100, %9) : f32[b*4, C] @backward "" at "m.py:4"
%12 = aten._log_softmax_backward_data.default(%11, %7, 1, f32) : f32[b*4, C] @backward "" at "m.py:4"
%13 = aten.view.default(%12, [b, 4, C]) : f32[b, 4, C] @backward "" at "m.py:3"
%14 = aten._to_copy.default(%13, bf16, none, none, none, false, none) : bf16[b, 4, C] @backward "" at "m.py:2"
%15 = aten.view.default(%14, [b*4, C]) : bf16[b*4, C] @backward "" at "m.py:1"
%16 = aten.view.default(%1, [b*4, 8]) : bf16[b*4, 8] @backward "" at "m.py:1"
%17 = aten.t.default(%15) : bf16[C, b*4] @backward "" at "m.py:1"
%18 = aten.mm.default(%17, %16) : bf16[C, 8] @backward "" at "m.py:1"
output loss %8
output gradient "w" %18
)";
  for (size_t place; (place = text.find('C')) != std::string::npos;) text.replace(place, 1, c);
  return text;
}

Cluster pair_of_devices(const DeviceKind& kind) {
  Cluster cluster;
  cluster.pools = {{"a", 2, 1, kind, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

DeviceKind a_kind(const std::string& name, double memory) {
  DeviceKind kind;
  kind.name = name;
  kind.memory_bytes = memory;
  return kind;
}

Program program_of(const Graph& graph,
                   std::vector<Microbatch> microbatches,
                   const DeviceKind& kind = a_kind("CPU", 64e9)) {
  Plan plan;
  for (const Microbatch& microbatch : microbatches) plan.global_batch += microbatch.rows;
  Stage stage;
  stage.mesh = {{"x"}, {2}, {"a/0/0", "a/1/0"}};
  plan.pipelines = {{{}, std::move(microbatches), {stage}}};
  return lower(graph, plan, pair_of_devices(kind), Optimizer());
}

std::string text_of_program(const std::string& graph) {
  return print(program_of(parse_graph(graph, "m.graph"), {{8, {5, 3}}}));
}

// The cast and the view are swapped, so only a number per row is f32.
TEST(CrossEntropy, KeepsLogitsAsTheyAre) {
  EXPECT_THAT(text_of_program(autocast_graph(5000)),
              AllOf(HasSubstr("= medley.log_sum_exp.default("),
                    HasSubstr("= medley.cross_entropy.default("),
                    HasSubstr("= medley.cross_entropy_backward.default("),
                    Not(HasSubstr("f32[b, 4, 5000]")),
                    Not(HasSubstr("f32[b*4, 5000]"))));
}

// Few classes save little memory.
TEST(CrossEntropy, FewClassesAreUnchanged) {
  EXPECT_THAT(text_of_program(autocast_graph(1000)),
              AllOf(HasSubstr("aten._log_softmax.default"), Not(HasSubstr("cross_entropy"))));
}

// On a GPU it costs time, and saves little memory on a large one.
TEST(CrossEntropy, OnAGpuIsAMatterOfItsMemory) {
  const auto is_ours = [](int64_t classes, double memory) {
    const Graph graph = parse_graph(autocast_graph(classes), "m.graph");
    const Program program = program_of(graph, {{8, {5, 3}}}, a_kind("H100-80GB", memory));
    return print(program).find("medley.cross_entropy") != std::string::npos;
  };
  EXPECT_FALSE(is_ours(32000, 80e9));
  EXPECT_TRUE(is_ours(128256, 80e9));
  EXPECT_TRUE(is_ours(32000, 16e9));
  EXPECT_FALSE(is_ours(2000, 1e9));
}

// Label smoothing sums log-probabilities, which are needed then.
TEST(CrossEntropy, ReadLogProbabilitiesAreUnchanged) {
  const std::string sum = "%19 = aten.sum.default(%7, none) : f32[] @forward \"\" at \"m.py:5\"\n";
  EXPECT_THAT(text_of_program(autocast_graph(5000, sum) + "output metric \"sum\" %19\n"),
              AllOf(HasSubstr("aten._log_softmax.default"), Not(HasSubstr("cross_entropy"))));
}

// In f32 the logits replace log-probabilities, and the gradient overwrites them, instead of both
// living at once.
TEST(CrossEntropy, TakesNoMoreThanTheLogits) {
  std::ifstream file("tests/data/gpt.graph");
  std::stringstream text;
  text << file.rdbuf();
  const Program program =
      program_of(run_passes(parse_graph(text.str(), "gpt.graph")), {{64, {64, 0}}});
  EXPECT_THAT(print(program), Not(HasSubstr("log_softmax")));
  const int64_t logits = 64 * 256 * 8192 * 4;
  const MemoryUse use = memory_use(program.stages[0], 0);
  EXPECT_LT(use.at_peak[at(MemoryPart::kTransient)], logits + logits / 2) << use.peak_at;
}

}  // namespace
}  // namespace medley
