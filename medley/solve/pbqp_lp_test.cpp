// Solves pairwise problems as integer programs by Clp and Cbc, an independent reference. The
// equality local polytope has a fraction for every choice and for every pair of choices of an edge:
//
//   sum_s p_v(s) = 1     sum_x p_e(s, x) = p_u(s)     sum_s p_e(s, x) = p_v(x)     p >= 0
//
// Its least cost is a lower bound of the optimum, and equals it if no fraction is left.

#include <gtest/gtest.h>

#include <CbcModel.hpp>
#include <ClpSimplex.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/solve/pbqp.h"
#include "medley/testing/pbqp_transformer.h"

namespace medley {
namespace {

class LocalPolytope {
 public:
  explicit LocalPolytope(const Pbqp& problem) {
    int64_t largest = 1;
    for (const auto& unary : problem.unaries) largest = std::max(largest, largest_allowed(unary));
    for (const auto& table : problem.tables)
      largest = std::max(largest, largest_allowed(table.costs));
    scale_ = static_cast<double>(largest);
    for (int v = 0; v < problem.num_variables(); ++v) {
      first_.push_back(static_cast<int>(costs_.size()));
      const int row = num_rows_++;
      for (const int64_t cost : problem.unaries[unsigned_of(problem.unary_of[unsigned_of(v)])]) {
        entries_.push_back({row, static_cast<int>(costs_.size()), 1});
        add_column(cost);
      }
    }
    first_.push_back(static_cast<int>(costs_.size()));
    for (const PbqpEdge& edge : problem.edges)
      add_edge(edge, problem.tables[unsigned_of(edge.table)]);
    load(problem.num_variables());
  }

  // Returns the least cost, or a value of at least `enough` if it is not below that.
  double least(double enough, bool integer) {
    model_.dual();
    if (model_.isProvenPrimalInfeasible()) return enough;
    MEDLEY_CHECK(model_.isProvenOptimal());
    const double bound = model_.objectiveValue() * scale_;
    if (!integer || bound >= enough - 0.5) return bound;
    const int split = most_fractional();
    if (split < 0) return bound;
    double best = enough;
    for (const double value : {1.0, 0.0}) {
      model_.setColumnBounds(split, value, value);
      best = std::min(best, least(best, true));
      model_.setColumnBounds(split, 0, 1);
    }
    return best;
  }

  // Returns the least cost of a choice for each variable by Cbc, by branch and cut; `none` if there
  // is none.
  double least_by_cbc(double none) {
    OsiClpSolverInterface solver(&model_);
    std::vector<int> choices(unsigned_of(first_.back()));
    std::iota(choices.begin(), choices.end(), 0);
    solver.setInteger(choices.data(), first_.back());
    CbcModel search(solver);
    search.setLogLevel(0);
    search.solver()->messageHandler()->setLogLevel(0);
    search.setDblParam(CbcModel::CbcCutoffIncrement, 1e-9);
    search.branchAndBound();
    if (search.isProvenInfeasible()) return none;
    MEDLEY_CHECK(search.isProvenOptimal());
    return search.getObjValue() * scale_;
  }

  bool is_integral() const { return most_fractional() < 0; }

 private:
  struct Entry {
    int row, column;
    double value;
  };

  static size_t unsigned_of(int index) { return at(index); }

  static int64_t largest_allowed(const std::vector<int64_t>& costs) {
    int64_t out = 0;
    for (const int64_t cost : costs)
      if (cost < kForbidden) out = std::max(out, cost);
    return out;
  }

  void add_column(int64_t cost) {
    costs_.push_back(cost < kForbidden ? static_cast<double>(cost) / scale_ : 0);
    upper_.push_back(cost < kForbidden ? 1 : 0);
  }

  void add_edge(const PbqpEdge& edge, const PbqpTable& table) {
    const int begin = static_cast<int>(costs_.size());
    for (const int64_t cost : table.costs) add_column(cost);
    for (int r = 0; r < table.rows; ++r, ++num_rows_) {
      entries_.push_back({num_rows_, first_[unsigned_of(edge.u)] + r, -1});
      for (int c = 0; c < table.columns; ++c)
        entries_.push_back({num_rows_, begin + r * table.columns + c, 1});
    }
    for (int c = 0; c < table.columns; ++c, ++num_rows_) {
      entries_.push_back({num_rows_, first_[unsigned_of(edge.v)] + c, -1});
      for (int r = 0; r < table.rows; ++r)
        entries_.push_back({num_rows_, begin + r * table.columns + c, 1});
    }
  }

  void load(int num_variables) {
    std::vector<int> rows, columns;
    std::vector<double> values;
    for (const Entry& entry : entries_) {
      rows.push_back(entry.row);
      columns.push_back(entry.column);
      values.push_back(entry.value);
    }
    const CoinPackedMatrix matrix(
        true, rows.data(), columns.data(), values.data(), static_cast<CoinBigIndex>(values.size()));
    std::vector<double> sides(unsigned_of(num_rows_), 0);
    std::fill_n(sides.begin(), num_variables, 1);
    const std::vector<double> lower(costs_.size(), 0);
    model_.setLogLevel(0);
    model_.loadProblem(
        matrix, lower.data(), upper_.data(), costs_.data(), sides.data(), sides.data());
  }

  // Returns the choice whose fraction is nearest to a half, -1 if all are integral.
  int most_fractional() const {
    int out = -1;
    double most = 1e-6;
    for (int column = 0; column < first_.back(); ++column) {
      const double value = model_.getColSolution()[column];
      const double distance = std::min(value, 1 - value);
      if (distance > most) {
        most = distance;
        out = column;
      }
    }
    return out;
  }

  double scale_ = 1;
  int num_rows_ = 0;
  std::vector<int> first_;  // [variable]: column of its first choice; plus the end
  std::vector<double> costs_, upper_;
  std::vector<Entry> entries_;
  ClpSimplex model_;
};

Pbqp random_problem(uint64_t seed, int num_variables, int num_edges) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Pbqp out;
  for (int v = 0; v < num_variables; ++v) {
    out.unary_of.push_back(v);
    out.unaries.emplace_back(at(2 + below(3)));
    for (int64_t& cost : out.unaries.back()) cost = below(1000);
  }
  for (int e = 0; e < num_edges; ++e) {
    const int u = below(num_variables - 1), v = u + 1 + below(num_variables - 1 - u);
    PbqpTable table{out.num_choices(u), out.num_choices(v), {}};
    for (int i = 0; i < table.rows * table.columns; ++i)
      table.costs.push_back(below(12) == 0 ? kForbidden : below(5000));
    out.edges.push_back({u, v, e});
    out.tables.push_back(std::move(table));
  }
  verify(out);
  return out;
}

TEST(PbqpLp, BranchAndBoundFindsTheSameLeastCost) {
  int fractional = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp problem = random_problem(seed, 10, 16);
    LocalPolytope polytope(problem);
    const double none = static_cast<double>(kForbidden);
    const double bound = polytope.least(none, false);
    fractional += !polytope.is_integral();
    const double truth = polytope.least(none, true);
    for (const PbqpMethod method : {PbqpMethod::kEliminate, PbqpMethod::kLifted}) {
      const auto found = solve(problem, {.method = method});
      ASSERT_EQ(found.has_value(), truth < none);
      if (!found) continue;
      EXPECT_LE(bound, static_cast<double>(found->cost) + 0.1);
      EXPECT_NEAR(truth, static_cast<double>(found->cost), 0.1);
    }
  }
  // The relaxation alone would not suffice.
  EXPECT_GT(fractional, 5);
}

TEST(PbqpLp, CbcFindsTheSameLeastCost) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp problem = random_problem(seed, 20, 40);
    const double none = static_cast<double>(kForbidden);
    const double truth = LocalPolytope(problem).least_by_cbc(none);
    for (const PbqpMethod method : {PbqpMethod::kEliminate, PbqpMethod::kLifted}) {
      const auto found = solve(problem, {.method = method});
      ASSERT_EQ(found.has_value(), truth < none);
      if (found) EXPECT_NEAR(truth, static_cast<double>(found->cost), 0.5);
    }
  }
}

// The relaxation of problems of transformers is tight, so the lifted dual proves its answers.
TEST(PbqpLp, TransformersHaveNoGap) {
  for (const double spread : {0.0, 0.1}) {
    const Pbqp problem =
        transformer_problem({.layers = 1, .axes = {{8, 1, 770}}, .spread = spread, .seed = 3});
    LocalPolytope polytope(problem);
    const double bound = polytope.least(static_cast<double>(kForbidden), false);
    const auto found = solve(problem, {.method = PbqpMethod::kLifted});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->lower_bound, found->cost);
    EXPECT_NEAR(bound / static_cast<double>(found->cost), 1, 1e-7);
  }
}

}  // namespace
}  // namespace medley
