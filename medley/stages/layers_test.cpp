#include "medley/stages/layers.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "medley/base/error.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/stages/layers_blocks.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

Graph gpt() {
  std::ifstream file("python/tests/golden/gpt.graph");
  std::stringstream text;
  text << file.rdbuf();
  return run_passes(parse_graph(text.str(), "gpt.graph"));
}

Layers layers_of(const Graph& graph, int per_block) {
  return find_layers(graph, place(graph), {.per_block = per_block});
}

std::vector<int32_t> structures(const Layers& layers) {
  std::vector<int32_t> ids;
  for (const Layer& layer : layers.layers) ids.push_back(layer.structure);
  return ids;
}

// Two blocks suffice; the ops before and after them are a layer each: R k + 2.
TEST(Layers, AreThoseOfTheBlocksAndTwoMore) {
  const Graph graph = gpt();
  for (const int k : {1, 2, 3}) {
    const Layers found = layers_of(graph, k);
    ASSERT_THAT(found.blocks, SizeIs(1));
    EXPECT_EQ(found.blocks[0].count, 2);
    EXPECT_THAT(found.layers, SizeIs(2 * at(k) + 2));
    EXPECT_EQ(found.layers.front().block, kNone);
    EXPECT_EQ(found.layers.back().block, kNone);
  }
}

TEST(Layers, EqualBlocksHaveOneStructure) {
  EXPECT_THAT(structures(layers_of(gpt(), 2)), ElementsAre(0, 1, 2, 1, 2, 3));
  // Without the first block's backward op it is a different layer.
  Graph graph = gpt();
  for (Op& op : graph.ops)
    if (op.name == "aten.gelu_backward.default" && op.module == "blocks.0.mlp")
      op.arguments[2] = std::string("none");
  EXPECT_THAT(structures(layers_of(graph, 2)), ElementsAre(0, 1, 2, 1, 3, 4));
}

// Inside a block only the residual crosses the cut after attention.
TEST(Layers, AreCutWhereTheFewestBytesCross) {
  const Graph graph = gpt();
  const Layers found = layers_of(graph, 2);
  constexpr int64_t kResidual = 32 * 64 * 4;
  for (size_t l = 0; l + 1 < found.layers.size(); ++l) {
    EXPECT_EQ(evaluate(total_bytes(graph, found.layers[l].up), {1}), kResidual);
    EXPECT_EQ(evaluate(total_bytes(graph, found.layers[l].down), {1}), kResidual);
  }
  EXPECT_THAT(found.layers.back().up, IsEmpty());
  // qkv, scores, mix, out against up and down: half of the scores are masked.
  const double attention = 2.0 * 32 * (64 * 192 + 64 * 64) + 2.0 * 32 * 32 * 64;
  EXPECT_DOUBLE_EQ(found.layers[1].flops, attention);
  EXPECT_DOUBLE_EQ(found.layers[2].flops, 2.0 * 32 * 2 * 64 * 256);
  EXPECT_EQ(found.layers[1].module, "blocks.0.attention");
}

// Layers and partition agree on values that cross.
TEST(Layers, CrossWhatStagesSend) {
  const Graph graph = gpt();
  const Positions positions = place(graph);
  const Layers found = find_layers(graph, positions, {.per_block = 3});
  for (int l = 1; l < static_cast<int>(found.layers.size()); ++l) {
    const Partition parts = partition(graph, positions, cuts_at(found, {l}), stable_names(graph));
    const Boundary both = boundary(parts, 0);
    EXPECT_EQ(both.up, found.layers[at(l) - 1].up);
    EXPECT_EQ(both.down, found.layers[at(l) - 1].down);
  }
}

// c_attn, attention and c_proj; both halves of the mlp.
TEST(Layers, AreDividedIntoParts) {
  const Graph graph = gpt();
  const auto begins = [&](int parts) {
    std::set<int32_t> all;
    for (const Layer& layer :
         find_layers(graph, place(graph), {.per_block = 2, .parts = parts}).layers)
      all.insert(layer.begin);
    return all;
  };
  const std::set<int32_t> whole = begins(1), two = begins(2), many = begins(4);
  EXPECT_TRUE(std::ranges::includes(two, whole));
  EXPECT_TRUE(std::ranges::includes(many, whole));
  EXPECT_THAT(whole, SizeIs(6));
  EXPECT_THAT(two, SizeIs(10));
  EXPECT_THAT(many, SizeIs(12));
}

TEST(Layers, KnowTheirParameters) {
  const Graph graph = gpt();
  const Layers found = layers_of(graph, 1);
  size_t total = 0;
  for (const Layer& layer : found.layers) total += layer.parameters.size();
  EXPECT_EQ(total, 29u);  // 28, one read twice
  EXPECT_EQ(found.layers.front().parameters, (std::vector<ValueId>{0, 1}));
  EXPECT_EQ(found.layers.back().parameters.front(), 0);
}

// Returns a chain of ops that each read the one before.
Sequence chain(const std::vector<Token>& tokens) {
  Sequence sequence;
  sequence.token = tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sequence.sources.emplace_back();
    if (i > 0) sequence.sources[i] = {{static_cast<int32_t>(i) - 1, 0}};
    sequence.flops.push_back(static_cast<double>(tokens[i]));
    sequence.bytes.push_back(i == 0 ? 0 : 1);
  }
  return sequence;
}

TEST(Blocks, AreTheShortestPeriod) {
  EXPECT_THAT(find_blocks(chain({9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8})),
              ElementsAre(RepeatedBlock{1, 3, 4}));
}

// The fewest bytes determine the start of the period: before every 2.
TEST(Blocks, BeginWhereFewestBytesCross) {
  Sequence sequence = chain({3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1});
  for (size_t i = 1; i < sequence.token.size(); ++i)
    sequence.bytes[i] = sequence.token[i] == 2 ? 1 : 5;
  EXPECT_THAT(find_blocks(sequence), ElementsAre(RepeatedBlock{2, 3, 3}));
}

TEST(Blocks, FindsBlocksOfTwoStacks) {
  EXPECT_THAT(find_blocks(chain({9, 1, 2, 3, 1, 2, 3, 7, 4, 5, 4, 5, 4, 5})),
              ElementsAre(RepeatedBlock{1, 3, 2}, RepeatedBlock{8, 2, 3}));
}

TEST(Blocks, WithOtherConnectionsAreOthers) {
  Sequence sequence = chain({9, 1, 2, 3, 1, 2, 3, 1, 2, 3});
  sequence.sources[9] = {{7, 0}};  // the last 3 skips its 2
  EXPECT_THAT(find_blocks(sequence), ElementsAre(RepeatedBlock{3, 3, 2}));
}

// Three projections of one value are no repeats at which a pipeline could be cut.
TEST(Blocks, SideBySideAreNone) {
  Sequence sequence = chain({9, 1, 2, 1, 2, 1, 2, 8});
  for (size_t i = 1; i < 7; i += 2) sequence.sources[i] = {{0, 0}};
  EXPECT_THAT(find_blocks(sequence), IsEmpty());
}

TEST(Blocks, WithoutRepeatsAreNone) { EXPECT_THAT(find_blocks(chain({1, 2, 3, 4, 5})), IsEmpty()); }

// Searches all ways to cut exhaustively: fewest bytes at the worst cut among those whose layers
// have flops and at most twice the mean, then the smallest largest layer.
TEST(Divide, IsTheBestOfAllWays) {
  uint64_t state = 1;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  int ways = 0;
  for (int round = 0; round < 300; ++round) {
    Sequence sequence = chain(std::vector<Token>(9, 1));
    double total = 0, largest = 0;
    for (size_t i = 0; i < 9; ++i) {
      sequence.flops[i] = static_cast<double>(random(3) * random(5));
      sequence.bytes[i] = static_cast<int64_t>(random(4));
      total += sequence.flops[i];
      largest = std::max(largest, sequence.flops[i]);
    }
    const std::vector<int32_t> found = divide(sequence, 0, 9, 3);
    const auto judge = [&](int32_t a, int32_t b) {
      const auto sum = [&](int32_t from, int32_t to) {
        double flops = 0;
        for (int32_t i = from; i < to; ++i) flops += sequence.flops[at(i)];
        return flops;
      };
      const double least = std::min({sum(0, a), sum(a, b), sum(b, 9)});
      const double most = std::max({sum(0, a), sum(a, b), sum(b, 9)});
      const bool legal = least > 0 && most <= std::max(2 * total / 3, largest) * (1 + 1e-9);
      return std::pair(legal ? std::max(sequence.bytes[at(a)], sequence.bytes[at(b)]) : int64_t{99},
                       most);
    };
    auto best = std::pair(int64_t{99}, 0.0);
    for (int32_t a = 1; a < 9; ++a)
      for (int32_t b = a + 1; b < 9; ++b)
        if (judge(a, b).first < 99 && (best.first == 99 || judge(a, b) < best)) best = judge(a, b);
    if (found.size() == 2)
      EXPECT_EQ(judge(found[0], found[1]).first, best.first) << round;
    else
      EXPECT_EQ(best.first, 99) << round;
    ways += found.size() == 2 ? 1 : 0;
  }
  EXPECT_GT(ways, 100);
}

}  // namespace
}  // namespace medley
