#include "medley/prepare/recompute.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "medley/base/sha256.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/plan/plan.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Graph read_model(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return run_passes(parse_graph(text.str(), path));
}

Graph small_mlp() { return read_model("tests/data/mlp.graph"); }
Graph gpt() { return read_model("python/tests/golden/gpt.graph"); }

// Returns relu(x W) `layers` times, on rows of 8 numbers: the backward phase reads each relu's
// result.
Graph chain(int layers) {
  std::string text = "medley-graph 1\ngraph \"chain\"\nsymbols b\n";
  int next = 0;
  const auto define = [&](const std::string& what) {
    text += "%" + std::to_string(next) + " = " + what + "\n";
    return "%" + std::to_string(next++);
  };
  std::vector<std::string> weights, made;
  for (int i = 0; i < layers; ++i)
    weights.push_back(define("parameter \"w" + std::to_string(i) + "\" : f32[8, 8]"));
  made.push_back(define("batch \"x\" : f32[b, 8]"));
  const auto op = [&](const std::string& call, const std::string& type, const std::string& phase) {
    return define("aten." + call + " : f32" + type + " @" + phase + " \"\"");
  };
  for (const std::string& weight : weights) {
    const std::string product =
        op("mm.default(" + made.back() + ", " + weight + ")", "[b, 8]", "forward");
    made.push_back(op("relu.default(" + product + ")", "[b, 8]", "forward"));
  }
  const std::string loss = op("sum.default(" + made.back() + ", none)", "[]", "forward");
  const std::string one = op("full.default(sizes[], 1.0, f32, none, none, none)", "[]", "backward");
  std::string gradient = op("expand.default(" + one + ", [b, 8], false)", "[b, 8]", "backward");
  std::vector<std::string> gradients(weights.size());
  for (size_t i = weights.size(); i-- > 0;) {
    gradient = op("threshold_backward.default(" + gradient + ", " + made[i + 1] + ", 0)",
                  "[b, 8]",
                  "backward");
    const std::string turned = op("t.default(" + made[i] + ")", "[8, b]", "backward");
    gradients[i] = op("mm.default(" + turned + ", " + gradient + ")", "[8, 8]", "backward");
    const std::string weight = op("t.default(" + weights[i] + ")", "[8, 8]", "backward");
    gradient = op("mm.default(" + gradient + ", " + weight + ")", "[b, 8]", "backward");
  }
  text += "output loss " + loss + "\n";
  for (size_t i = 0; i < weights.size(); ++i)
    text += "output gradient \"w" + std::to_string(i) + "\" " + gradients[i] + "\n";
  return parse_graph(text, "chain.graph");
}

Prepared prepared(const Graph& graph, const std::string& how, int in_flight = 1) {
  StageContext context;
  context.names = stable_names(graph);
  context.recompute = how;
  context.in_flight = in_flight;
  return prepare(graph, Optimizer{}, context);
}

// Returns every output as a term over the inputs: equal terms are bitwise equal, whatever the ops
// do.
std::map<std::string, std::string> terms(const Graph& graph) {
  std::vector<std::string> term(graph.values.size());
  for (const Input& input : graph.inputs)
    term[at(input.value)] = to_string(input.kind) + " " + input.name;
  for (const Op& op : graph.ops) {
    Op bare = op;
    std::string read;
    for_each_operand(bare, [&](ValueId& value) {
      read += term[at(value)] + ",";
      value = 0;
    });
    Graph alone;
    alone.symbols = graph.symbols;
    alone.values = {{}};
    bare.phase = Phase::kForward;
    bare.results.clear();
    bare.module.clear();
    alone.ops = {bare};
    for (size_t r = 0; r < op.results.size(); ++r)
      if (op.results[r] != kNone)
        term[at(op.results[r])] = sha256_hex(print(alone) + read + std::to_string(r));
  }
  std::map<std::string, std::string> result;
  for (const Output& output : graph.outputs)
    result[to_string(output.kind) + " " + output.name] = term[at(output.value)];
  return result;
}

// Returns the forward values that the backward phase reads.
std::vector<std::string> kept(const Prepared& prepared) {
  std::vector<std::string> names;
  std::set<ValueId> seen;
  for (const Op& op : prepared.graph.ops) {
    if (op.phase != Phase::kBackward) continue;
    for (ValueId value : operands(op)) {
      if (value == kNone || !seen.insert(value).second) continue;
      const OpId maker = prepared.graph.values[at(value)].producer;
      if (maker != kNone && prepared.graph.ops[at(maker)].phase == Phase::kForward)
        names.push_back(prepared.names[at(maker)]);
    }
  }
  return names;
}

TEST(Recompute, GradientsAreTheSameTerms) {
  for (const Graph& graph : {small_mlp(), gpt(), chain(9)}) {
    const auto want = terms(prepared(graph, "none").graph);
    EXPECT_GT(want.size(), 3);
    for (const char* how : {"all", "blocks"}) EXPECT_EQ(terms(prepared(graph, how).graph), want);
  }
}

TEST(Recompute, AllKeepsNothing) {
  for (const Graph& graph : {small_mlp(), gpt(), chain(9)}) {
    EXPECT_THAT(kept(prepared(graph, "none")), testing::Not(IsEmpty()));
    EXPECT_THAT(kept(prepared(graph, "all")), IsEmpty());
  }
}

// Each forward op runs at most twice, and its repetition has its name.
TEST(Recompute, AnOpIsCopiedOnce) {
  const Prepared both = prepared(gpt(), "blocks");
  const std::vector<OpId> of = originals(both);
  std::set<OpId> seen;
  for (size_t i = 0; i < of.size(); ++i) {
    if (of[i] == kNone) continue;
    EXPECT_TRUE(both.roles[i].recomputed);
    EXPECT_EQ(both.names[i], both.names[at(of[i])]);
    EXPECT_TRUE(seen.insert(of[i]).second);
  }
  EXPECT_GT(seen.size(), 10);
}

// Checks the header's equation by trying all cuts behind relus.
TEST(Recompute, BlocksNeedLeastMemory) {
  for (int layers = 1; layers <= 9; ++layers)
    for (const int in_flight : {1, 2, 5}) {
      int best = layers;
      for (unsigned cuts = 0; cuts < 1u << (layers - 1); ++cuts) {
        int kept = 0, longest = 0, length = 0;
        for (int i = 0; i < layers; ++i, ++length) {
          longest = std::max(longest, length + (i + 1 == layers));
          if (!(cuts >> i & 1u)) continue;
          longest = std::max(longest, length);
          ++kept;
          length = -1;
        }
        best = std::min(best, in_flight * kept + longest);
      }
      const std::vector<size_t> found = recomputed_blocks(chain(layers), in_flight);
      int longest = 0;
      size_t before = 0;
      for (const size_t cut : found) {
        EXPECT_EQ(cut % 2, 0);
        longest = std::max(longest, static_cast<int>(cut - before) / 2 - 1);
        before = cut;
      }
      longest = std::max(longest, layers - static_cast<int>(before) / 2);
      EXPECT_EQ(in_flight * static_cast<int>(found.size()) + longest, best)
          << layers << " layers, " << in_flight << " in flight";
    }
}

Plan one_stage(std::string_view how, int devices, int microbatches) {
  Plan plan;
  Stage stage;
  stage.mesh = {{"x"}, {devices}, {}};
  for (int i = 0; i < devices; ++i) stage.mesh.devices.push_back("a/" + std::to_string(i) + "/0");
  stage.recompute = how;
  plan.global_batch = 400 * microbatches;
  plan.pipelines.resize(1);
  plan.pipelines[0].microbatches.assign(at(microbatches), {400, {}});
  plan.pipelines[0].stages = {stage};
  plan.pipelines[0].schedule = "gpipe";
  return plan;
}

Cluster computing(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Nine layers, six micro-batches in flight, w bytes behind each relu: 9 w are saved for each of
// them, or none.
TEST(Recompute, MemoryOfAChain) {
  const int layers = 9;
  const int64_t width = 400 * 8 * 4;
  std::map<std::string, MemoryUse> uses;
  for (const std::string_view how : kRecompute) {
    uses[std::string(how)] =
        memory_use(lower(chain(layers), one_stage(how, 1, 6), computing(1), {}).stages[0], 0);
  }
  EXPECT_THAT(uses["none"].saved, testing::Each(layers * width));
  EXPECT_THAT(uses["all"].saved, testing::Each(0));
  EXPECT_EQ(uses["none"].peak - uses["all"].peak, 5 * layers * width);
  // A cut behind the fifth layer would save and recompute 6 + 4, against 9 without cuts.
  EXPECT_THAT(recomputed_blocks(chain(layers), 6), IsEmpty());
  EXPECT_EQ(uses["blocks"].peak, uses["all"].peak);
  // With one in flight, a cut behind the fifth: 1 + 4 of 9.
  std::map<std::string, MemoryUse> alone;
  for (const char* how : {"none", "blocks"}) {
    Plan plan = one_stage(how, 1, 6);
    plan.pipelines[0].schedule = "1f1b";
    alone[how] = memory_use(lower(chain(layers), plan, computing(1), {}).stages[0], 0);
  }
  EXPECT_THAT(recomputed_blocks(chain(layers), 1), ElementsAre(10));
  EXPECT_THAT(alone["blocks"].saved, testing::Each(width));
  const int64_t gradients = layers * 8 * 8 * 4;
  EXPECT_LE(alone["none"].peak - alone["blocks"].peak, 4 * width);
  EXPECT_GE(alone["none"].peak - alone["blocks"].peak, 4 * width - gradients);
}

// The plan's choice for an op holds for all its repetitions.
TEST(Recompute, IsDoneAsItWas) {
  for (const char* how : {"all", "blocks"}) {
    Plan plan = one_stage(how, 2, 2);
    plan.pipelines[0].stages[0].ops = {{"/mm#0", "n even"}, {"/mm#1", "k even"}};
    const Completed completed = complete_stages(analyse(chain(6), {}), plan)[0];
    const std::vector<OpId> of = originals(*completed.prepared);
    int again = 0;
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i] == kNone) continue;
      ++again;
      EXPECT_EQ(completed.assignment.choices[i], completed.assignment.choices[at(of[i])]);
    }
    EXPECT_GT(again, 5);
    static_cast<void>(lower(chain(6), plan, computing(2), {}));  // verifies
  }
}

// By then, its running statistics are those of another micro-batch: their dependents are kept.
TEST(Recompute, ABufferThatChangesIsReadOnce) {
  Graph graph = parse_graph(R"(medley-graph 1
graph "counted"
symbols b
%0 = parameter "w" : f32[8, 8]
%1 = buffer "scale" : f32[8]
%2 = batch "x" : f32[b, 8]
%3 = aten.mm.default(%2, %0) : f32[b, 8] @forward ""
%4 = aten.mul.Tensor(%3, %1) : f32[b, 8] @forward ""
%5 = aten.relu.default(%4) : f32[b, 8] @forward ""
%6 = aten.mul.Tensor(%1, 0.5) : f32[8] @forward ""
%7 = aten.sum.default(%5, none) : f32[] @forward ""
%8 = aten.full.default(sizes[], 1.0, f32, none, none, none) : f32[] @backward ""
%9 = aten.expand.default(%8, [b, 8], false) : f32[b, 8] @backward ""
%10 = aten.threshold_backward.default(%9, %5, 0) : f32[b, 8] @backward ""
%11 = aten.mul.Tensor(%10, %4) : f32[b, 8] @backward ""
%12 = aten.t.default(%2) : f32[8, b] @backward ""
%13 = aten.mm.default(%12, %11) : f32[8, 8] @backward ""
output loss %7
output gradient "w" %13
output buffer "scale" %6
)",
                            "counted.graph");
  const Prepared all = prepared(graph, "all");
  EXPECT_THAT(kept(all), ElementsAre("/mul#0"));
  int products = 0;
  for (const std::string& name : all.names) products += name == "/mul#0" || name == "/mul#1";
  EXPECT_EQ(products, 2);
}

}  // namespace
}  // namespace medley
