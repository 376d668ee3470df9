#include "medley/solve/pbqp.h"
#include "medley/base/at.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "medley/base/error.h"
#include "medley/testing/pbqp_transformer.h"

namespace medley {
namespace {

// Returns a random problem with all difficulties: ties (few distinct costs), forbidden entries,
// parallel edges, shared tables, variables without edges.
Pbqp random_problem(uint64_t seed, int max_variables) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const int most = 1 + below(seed % 2 == 0 ? 4 : 1000), forbidden = below(4) * 10;
  const auto draw = [&] { return below(100) < forbidden ? kForbidden : int64_t{below(most)}; };
  Pbqp out;
  const int sizes = 1 + below(4);
  for (int i = 0; i < 6; ++i) {
    out.unaries.emplace_back(at(1 + below(sizes)));
    for (int64_t& cost : out.unaries.back()) cost = draw();
  }
  const int n = 1 + below(max_variables);
  for (int v = 0; v < n; ++v) out.unary_of.push_back(below(6));
  for (int e = below(2 * n); n > 1 && e-- > 0;) {
    PbqpEdge edge;
    edge.u = below(n - 1);
    edge.v = edge.u + 1 + below(n - 1 - edge.u);
    const int rows = out.num_choices(edge.u), columns = out.num_choices(edge.v);
    edge.table = static_cast<int32_t>(out.tables.size());
    for (size_t t = 0; t < out.tables.size() && below(3) > 0; ++t)
      if (out.tables[t].rows == rows && out.tables[t].columns == columns)
        edge.table = static_cast<int32_t>(t);
    if (edge.table == static_cast<int32_t>(out.tables.size())) {
      out.tables.push_back({rows, columns, std::vector<int64_t>(at(rows * columns))});
      for (int64_t& cost : out.tables.back().costs) cost = draw();
    }
    out.edges.push_back(edge);
  }
  verify(out);
  return out;
}

// Few costs are forbidden and unaries are small, so much is left without dead ends.
Pbqp hard_problem(uint64_t seed, int num_variables, int num_edges, int num_choices) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Pbqp out;
  const auto n = at(num_choices);
  for (int v = 0; v < num_variables; ++v) {
    out.unary_of.push_back(v);
    out.unaries.emplace_back(n);
    for (int64_t& cost : out.unaries.back()) cost = below(1000);
  }
  for (int e = 0; e < num_edges; ++e) {
    const int u = below(num_variables - 1), v = u + 1 + below(num_variables - 1 - u);
    out.edges.push_back({u, v, e});
    out.tables.push_back({num_choices, num_choices, std::vector<int64_t>(n * n)});
    for (int64_t& cost : out.tables.back().costs)
      cost = below(50) == 0 ? kForbidden : below(10'000);
  }
  return out;
}

Pbqp all_allowed(Pbqp problem) {
  for (PbqpTable& table : problem.tables)
    for (int64_t& cost : table.costs) cost = std::min<int64_t>(cost, 20'000);
  return problem;
}

// `count` copies of a block of four variables and a ring of edges, each joined to the next one:
//
//   a - b     a - b
//   |   | \   |   | \ ...
//   c - d - - c - d - -
Pbqp repeated_blocks(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Pbqp out;
  for (int i = 0; i < 4; ++i) {
    out.unaries.emplace_back(5);
    for (int64_t& cost : out.unaries.back()) cost = static_cast<int64_t>(random() % 1000);
  }
  for (int i = 0; i < 6; ++i) {
    out.tables.push_back({5, 5, std::vector<int64_t>(25)});
    for (int64_t& cost : out.tables.back().costs) cost = static_cast<int64_t>(random() % 2000);
  }
  for (int32_t block = 0; block < count; ++block) {
    const int32_t a = 4 * block, b = a + 1, c = a + 2, d = a + 3;
    out.unary_of.insert(out.unary_of.end(), {0, 1, 2, 3});
    out.edges.insert(out.edges.end(), {{a, b, 0}, {a, c, 1}, {b, d, 2}, {c, d, 3}});
    if (block + 1 < count) out.edges.insert(out.edges.end(), {{b, a + 4, 4}, {d, c + 4, 5}});
  }
  return out;
}

// Returns the least cost of repeated_blocks(), block by block: best[b, d] over all earlier ones.
int64_t least_of_blocks(int count, uint64_t seed) {
  const Pbqp one = repeated_blocks(1, seed), two = repeated_blocks(2, seed);
  std::vector<int64_t> own;
  for (int32_t x = 0; x < 625; ++x)
    own.push_back(cost(one, std::vector<int32_t>{x % 5, x / 5 % 5, x / 25 % 5, x / 125}));
  const auto link = [&](size_t edge, size_t from, size_t to) {
    return two.tables[edge].costs[from * 5 + to];
  };
  std::vector<int64_t> best(25, 0);
  for (int block = 0; block < count; ++block) {
    std::vector<int64_t> before(25, block == 0 ? 0 : kForbidden), next(25, kForbidden);
    for (size_t ac = 0; ac < 25 && block > 0; ++ac)
      for (size_t bd = 0; bd < 25; ++bd)
        before[ac] =
            std::min(before[ac], best[bd] + link(4, bd % 5, ac % 5) + link(5, bd / 5, ac / 5));
    for (size_t x = 0; x < 625; ++x) {
      int64_t& least = next[x / 5 % 5 + 5 * (x / 125)];
      least = std::min(least, before[x % 5 + 5 * (x / 25 % 5)] + own[x]);
    }
    best = std::move(next);
  }
  return *std::ranges::min_element(best);
}

// Variables in the order of a forward and a backward run, which reads the forward ones:
//
//   0 - 1 - 2 - 3
//   |   |   |   |      7 reads 0, 6 reads 1, ...
//   7 - 6 - 5 - 4
Pbqp nested_skips(int depth, uint64_t seed) {
  Pbqp out = hard_problem(seed, 2 * depth, 3 * depth, 4);
  int32_t e = 0;
  for (int32_t v = 0; v + 1 < 2 * depth; ++v) out.edges[at(e)] = {v, v + 1, e}, ++e;
  for (int32_t v = 0; v + 1 < depth; ++v) out.edges[at(e)] = {v, 2 * depth - 1 - v, e}, ++e;
  out.edges.resize(at(e));
  return out;
}

// Returns `count` chains of four between the first variable and the last one, all their first
// variables before all their second ones.
Pbqp branches(int count, uint64_t seed) {
  Pbqp out = hard_problem(seed, 4 * count + 2, 5 * count, 4);
  int32_t e = 0;
  const auto add = [&](int32_t u, int32_t v) { out.edges[at(e)] = {u, v, e}, ++e; };
  for (int32_t branch = 1; branch <= count; ++branch) {
    add(0, branch);
    for (int32_t step = 0; step < 3; ++step)
      add(branch + step * count, branch + (step + 1) * count);
    add(branch + 3 * count, 4 * count + 1);
  }
  return out;
}

void expect_same_answer(const Pbqp& problem, PbqpMethod method, PbqpMethod truth) {
  const auto expected = solve(problem, {.method = truth});
  const auto found = solve(problem, {.method = method});
  ASSERT_EQ(found.has_value(), expected.has_value());
  if (!found) return;
  EXPECT_EQ(cost(problem, found->choices), found->cost);
  EXPECT_EQ(found->lower_bound, found->cost);
  EXPECT_EQ(found->cost, expected->cost);
}

TEST(Pbqp, AllMethodsFindTheLeastOfAllAssignments) {
  int with_answer = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp problem = random_problem(seed, 8);
    for (const PbqpMethod method :
         {PbqpMethod::kEliminate, PbqpMethod::kLifted, PbqpMethod::kAStar, PbqpMethod::kAuto})
      expect_same_answer(problem, method, PbqpMethod::kExhaustive);
    with_answer += solve(problem).has_value();
  }
  // Both outcomes are frequent.
  EXPECT_GT(with_answer, 300);
  EXPECT_LT(with_answer, 580);
}

TEST(Pbqp, AllMethodsFindTheLeastWhereDeadEndsAreFew) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp problem = hard_problem(seed, 7, 14, 4);
    for (const PbqpMethod method :
         {PbqpMethod::kEliminate, PbqpMethod::kLifted, PbqpMethod::kAStar, PbqpMethod::kAuto})
      expect_same_answer(problem, method, PbqpMethod::kExhaustive);
  }
}

TEST(Pbqp, MethodsAgreeOnLargerProblems) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_answer(hard_problem(seed, 24, 36, 5), PbqpMethod::kLifted, PbqpMethod::kEliminate);
    expect_same_answer(hard_problem(seed, 12, 16, 4), PbqpMethod::kAStar, PbqpMethod::kEliminate);
  }
}

// Topological order pays 4^depth for these problems. For elimination they are a ladder, or a few
// chains: one variable and at most three neighbours.
TEST(Pbqp, NestedSkipsAndBranchesAreNarrow) {
  for (const Pbqp& problem : {nested_skips(60, 1), branches(60, 2)}) {
    const auto found = solve(problem, {.method = PbqpMethod::kEliminate});
    ASSERT_TRUE(found.has_value());
    EXPECT_LE(found->largest_table, 256);
    expect_same_answer(problem, PbqpMethod::kLifted, PbqpMethod::kEliminate);
  }
  expect_same_answer(nested_skips(4, 3), PbqpMethod::kEliminate, PbqpMethod::kExhaustive);
  expect_same_answer(nested_skips(6, 4), PbqpMethod::kAStar, PbqpMethod::kEliminate);
  expect_same_answer(branches(6, 5), PbqpMethod::kAStar, PbqpMethod::kEliminate);
}

// Few edges more than variables: nearly all have at most two neighbours and are contracted, unlike
// in plain elimination.
TEST(Pbqp, ContractedVariablesAreChosenBestAfterwards) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const int edges = 30 + static_cast<int>(seed % 25);
    for (const PbqpMethod method : {PbqpMethod::kLifted, PbqpMethod::kAuto})
      expect_same_answer(hard_problem(seed, 40, edges, 4), method, PbqpMethod::kEliminate);
    // The same with most costs forbidden, so some have no answer.
    Pbqp tight = hard_problem(seed, 10, 11, 3);
    for (PbqpTable& table : tight.tables)
      for (int64_t& cost : table.costs)
        if (cost % 5 > 1) cost = kForbidden;
    for (const PbqpMethod method : {PbqpMethod::kLifted, PbqpMethod::kAuto})
      expect_same_answer(tight, method, PbqpMethod::kExhaustive);
  }
}

// A cap below the need of contraction leaves the variables in place.
TEST(Pbqp, ContractionKeepsTheCap) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp problem = all_allowed(hard_problem(seed, 30, 34, 4));
    const auto best = solve(problem, {.method = PbqpMethod::kEliminate});
    const auto capped = solve(problem, {.table_cap = 15, .seconds = 0.1});
    ASSERT_TRUE(best && capped);
    EXPECT_LE(capped->largest_table, 15);
    EXPECT_LE(capped->lower_bound, best->cost);
    EXPECT_GE(capped->cost, best->cost);
  }
}

// Equal blocks are solved once, for any number of them.
TEST(Pbqp, RepeatedBlocksAreConstantWork) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp few = repeated_blocks(100, seed), many = repeated_blocks(10'000, seed);
    const auto of_few = solve(few, {.method = PbqpMethod::kEliminate});
    const auto of_many = solve(many, {.method = PbqpMethod::kEliminate});
    ASSERT_TRUE(of_few && of_many);
    EXPECT_LE(of_many->work, of_few->work + 1000);
    EXPECT_EQ(of_few->cost, least_of_blocks(100, seed));
    EXPECT_EQ(of_many->cost, least_of_blocks(10'000, seed));
    EXPECT_EQ(cost(many, of_many->choices), of_many->cost);
    EXPECT_EQ(solve(few, {.method = PbqpMethod::kLifted})->cost, of_few->cost);
  }
}

TEST(Pbqp, TheSmallestProblems) {
  for (const PbqpMethod method : {PbqpMethod::kAuto,
                                  PbqpMethod::kEliminate,
                                  PbqpMethod::kLifted,
                                  PbqpMethod::kAStar,
                                  PbqpMethod::kExhaustive}) {
    SCOPED_TRACE(static_cast<int>(method));
    const auto nothing = solve({}, {.method = method});
    ASSERT_TRUE(nothing.has_value());
    EXPECT_EQ(nothing->cost, 0);
    const auto one = solve({{{3, 1, 2}}, {}, {0}, {}}, {.method = method});
    ASSERT_TRUE(one.has_value());
    EXPECT_EQ(one->choices, std::vector<int32_t>{1});
    EXPECT_EQ(one->lower_bound, 1);
    const auto apart = solve({{{3, 1}, {kForbidden, 7}}, {}, {0, 1, 0}, {}}, {.method = method});
    ASSERT_TRUE(apart.has_value());
    EXPECT_EQ(apart->cost, 9);
  }
}

// A triangle of two choices each in which neighbours must differ has no answer, though every pair
// has. Dead ends, elimination, the window and the search each must detect that.
TEST(Pbqp, SaysThatThereIsNoAnswer) {
  Pbqp triangle{{{0, 0}},
                {{2, 2, {kForbidden, 0, 0, kForbidden}}},
                {0, 0, 0},
                {{0, 1, 0}, {1, 2, 0}, {0, 2, 0}}};
  for (const PbqpMethod method : {PbqpMethod::kAuto,
                                  PbqpMethod::kEliminate,
                                  PbqpMethod::kLifted,
                                  PbqpMethod::kAStar,
                                  PbqpMethod::kExhaustive}) {
    EXPECT_FALSE(solve(triangle, {.method = method}).has_value());
    // The sum of the forbidden costs exceeds a 64-bit integer.
    Pbqp large{{{kForbidden, kForbidden + 1}}, {}, std::vector<int32_t>(20'000, 0), {}};
    if (method == PbqpMethod::kExhaustive) continue;
    EXPECT_FALSE(solve(large, {.method = method}).has_value());
  }
  EXPECT_GE(cost(triangle, std::vector<int32_t>{0, 0, 0}), kForbidden);
}

// Without time each method still gives an answer and a bound around the optimum.
TEST(Pbqp, OutOfTimeItReturnsAnAnswerAndABound) {
  const Pbqp problem = all_allowed(hard_problem(3, 30, 60, 5));
  const auto best = solve(problem, {.method = PbqpMethod::kEliminate});
  ASSERT_TRUE(best.has_value());
  for (const PbqpMethod method :
       {PbqpMethod::kAuto, PbqpMethod::kEliminate, PbqpMethod::kLifted, PbqpMethod::kAStar}) {
    const auto found = solve(problem, {.method = method, .seconds = 0});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(cost(problem, found->choices), found->cost);
    EXPECT_LE(found->lower_bound, best->cost);
    EXPECT_GE(found->cost, best->cost);
  }
}

// Rounds alone end an unproved search, with equal answers on all machines.
TEST(Pbqp, WithoutALimitOfTimeRoundsEndIt) {
  const Pbqp problem = all_allowed(hard_problem(8, 40, 120, 5));
  const PbqpOptions few{
      .table_cap = 50, .work_cap = 100, .window_cap = 20, .rounds = 3, .seconds = {}};
  const auto found = solve(problem, few), again = solve(problem, few);
  ASSERT_TRUE(found && again);
  EXPECT_LT(found->lower_bound, found->cost);
  EXPECT_EQ(found->choices, again->choices);
  EXPECT_EQ(found->lower_bound, again->lower_bound);
}

TEST(Pbqp, CapsAreKept) {
  const Pbqp problem = all_allowed(hard_problem(8, 20, 60, 5));
  EXPECT_THROW(solve(problem, {.method = PbqpMethod::kEliminate, .table_cap = 5000}), Error);
  const auto best = solve(problem, {.method = PbqpMethod::kEliminate});
  const auto capped = solve(problem, {.table_cap = 5000, .seconds = 0.2});
  ASSERT_TRUE(best && capped);
  EXPECT_EQ(capped->method, PbqpMethod::kLifted);
  EXPECT_LE(capped->largest_table, 5000);
  EXPECT_LE(capped->lower_bound, best->cost);
  EXPECT_GE(capped->cost, best->cost);
}

// Equal parts of a problem may be shared or repeated.
TEST(Pbqp, RecognisesEqualTablesWithDifferentIndices) {
  const Pbqp shared = repeated_blocks(50, 1);
  Pbqp apart = shared;
  for (PbqpEdge& edge : apart.edges) {
    apart.tables.push_back(apart.tables[at(edge.table)]);
    edge.table = static_cast<int32_t>(apart.tables.size()) - 1;
  }
  const auto a = solve(shared, {.method = PbqpMethod::kEliminate});
  const auto b = solve(apart, {.method = PbqpMethod::kEliminate});
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->choices, b->choices);
  EXPECT_EQ(a->work, b->work);
}

// Costs are as large as in synthesis, hundreds of seconds in ps, and exact.
TEST(Pbqp, LargeCostsAreExact) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Pbqp problem = hard_problem(seed, 7, 10, 4);
    std::mt19937_64 random(seed);
    for (PbqpTable& table : problem.tables)
      for (int64_t& cost : table.costs)
        if (cost < kForbidden) cost = static_cast<int64_t>(random() % 100'000'000'000'000);
    for (const PbqpMethod method :
         {PbqpMethod::kEliminate, PbqpMethod::kLifted, PbqpMethod::kAStar})
      expect_same_answer(problem, method, PbqpMethod::kExhaustive);
  }
}

TEST(Pbqp, TransformersOfTwoAxesAreProved) {
  const Pbqp problem =
      transformer_problem({.layers = 12, .axes = {{2, 2, 770}, {4, 1, 40}}, .seed = 1});
  const auto found = solve(problem);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->method, PbqpMethod::kLifted);
  EXPECT_EQ(found->lower_bound, found->cost);
}

TEST(Pbqp, TransformersOfOneAxisAgree) {
  for (const double spread : {0.0, 0.1}) {
    const Pbqp problem =
        transformer_problem({.layers = 2, .axes = {{8, 1, 770}}, .spread = spread, .seed = 2});
    for (const PbqpMethod method : {PbqpMethod::kLifted, PbqpMethod::kAuto})
      expect_same_answer(problem, method, PbqpMethod::kEliminate);
  }
}

TEST(Pbqp, VerifyNamesWhatDoesNotFit) {
  const Pbqp good{{{1, 2}, {1, 2, 3}}, {{2, 3, std::vector<int64_t>(6)}}, {0, 1}, {{0, 1, 0}}};
  verify(good);
  const auto broken = [&](auto change) {
    Pbqp problem = good;
    change(problem);
    EXPECT_THROW(verify(problem), Error);
  };
  broken([](Pbqp& p) { p.unaries[0].clear(); });
  broken([](Pbqp& p) { p.unaries[0][1] = -1; });
  broken([](Pbqp& p) { p.tables[0].costs[3] = -1; });
  broken([](Pbqp& p) { p.tables[0].costs.pop_back(); });
  broken([](Pbqp& p) { p.unary_of[0] = 2; });
  broken([](Pbqp& p) { p.unary_of[0] = 1; });
  broken([](Pbqp& p) { p.edges[0] = {0, 0, 0}; });
  broken([](Pbqp& p) { p.edges[0] = {1, 0, 0}; });
  broken([](Pbqp& p) { p.edges[0] = {0, 2, 0}; });
  broken([](Pbqp& p) { p.edges[0] = {0, 1, 1}; });
}

}  // namespace
}  // namespace medley
