#include "medley/planner/pbqp.h"

#include <gtest/gtest.h>

#include <random>

#include "medley/base/error.h"

namespace medley {
namespace {

// A random problem with all that makes one hard: ties (few distinct costs), forbidden entries,
// parallel edges, tables used more than once, variables without edges.
Pbqp random_problem(uint64_t seed, int max_variables) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const int most = 1 + below(seed % 2 == 0 ? 4 : 1000), forbidden = below(4) * 10;
  const auto draw = [&] { return below(100) < forbidden ? kForbidden : int64_t{below(most)}; };
  Pbqp out;
  const int sizes = 1 + below(4);
  for (int i = 0; i < 6; ++i) {
    out.unaries.emplace_back(static_cast<size_t>(1 + below(sizes)));
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
      out.tables.push_back(
          {rows, columns, std::vector<int64_t>(static_cast<size_t>(rows * columns))});
      for (int64_t& cost : out.tables.back().costs) cost = draw();
    }
    out.edges.push_back(edge);
  }
  verify(out);
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

TEST(Pbqp, EliminationFindsTheLeastOfAllAssignments) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_answer(random_problem(seed, 8), PbqpMethod::kEliminate, PbqpMethod::kExhaustive);
  }
}

TEST(Pbqp, LiftedDualFindsTheLeastOfAllAssignments) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_answer(random_problem(seed, 8), PbqpMethod::kLifted, PbqpMethod::kExhaustive);
  }
}

TEST(Pbqp, SearchFindsTheLeastOfAllAssignments) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    expect_same_answer(random_problem(seed, 8), PbqpMethod::kAStar, PbqpMethod::kExhaustive);
  }
}

}  // namespace
}  // namespace medley
