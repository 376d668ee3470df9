#include "medley/planner/pbqp.h"

#include <algorithm>
#include <limits>

#include "medley/base/error.h"
#include "medley/planner/pbqp_core.h"
#include "medley/planner/pbqp_eliminate.h"

namespace medley {
namespace {

size_t at(int32_t index) { return static_cast<size_t>(index); }

void verify_costs(const std::vector<int64_t>& costs) {
  MEDLEY_CHECK(!costs.empty());
  MEDLEY_CHECK(std::ranges::all_of(costs, [](int64_t cost) { return cost >= 0; }));
}

int64_t plus(int64_t a, int64_t b) { return std::min(a + std::min(b, kForbidden), kForbidden); }

std::optional<PbqpSolution> solution_of(const Pbqp& problem,
                                        std::vector<int32_t> choices,
                                        PbqpMethod method) {
  PbqpSolution out;
  out.cost = cost(problem, choices);
  if (out.cost >= kForbidden) return std::nullopt;
  out.lower_bound = out.cost;
  out.choices = std::move(choices);
  out.method = method;
  return out;
}

std::optional<PbqpSolution> solve_exhaustively(const Pbqp& problem) {
  std::vector<int32_t> choices(problem.unary_of.size(), 0), best = choices;
  int64_t least = kForbidden;
  for (size_t v = 0; v < choices.size();) {
    const int64_t now = cost(problem, choices);
    if (now < least) {
      least = now;
      best = choices;
    }
    for (v = 0; v < choices.size(); ++v) {
      if (++choices[v] < problem.num_choices(static_cast<int>(v))) break;
      choices[v] = 0;
    }
  }
  return solution_of(problem, std::move(best), PbqpMethod::kExhaustive);
}

std::optional<PbqpSolution> solve_by_elimination(const Pbqp& problem, const PbqpOptions& options) {
  const auto start = pbqp::Clock::now();
  const auto deadline = start + std::chrono::duration_cast<pbqp::Clock::duration>(
                                    std::chrono::duration<double>(options.seconds));
  pbqp::Reducer reducer;
  pbqp::Core core = reducer.core_of(problem);
  if (!reducer.remove_dead_ends(core)) return std::nullopt;
  const auto order = pbqp::find_order(core, 1e10, 1e12);
  MEDLEY_CHECK(order.has_value());
  const pbqp::Elimination result = pbqp::eliminate(reducer.pool(), core, *order, deadline);
  MEDLEY_CHECK(result.outcome != pbqp::Elimination::Outcome::kOutOfTime);
  if (result.outcome == pbqp::Elimination::Outcome::kInfeasible) return std::nullopt;
  auto out = solution_of(problem, result.choices, PbqpMethod::kEliminate);
  if (!out) return out;
  out->largest_table = result.largest_table;
  out->work = result.work;
  out->dead_ends = static_cast<int>(core.dropped);
  out->seconds = std::chrono::duration<double>(pbqp::Clock::now() - start).count();
  return out;
}

}  // namespace

void verify(const Pbqp& problem) {
  for (const std::vector<int64_t>& unary : problem.unaries) verify_costs(unary);
  for (const PbqpTable& table : problem.tables) {
    verify_costs(table.costs);
    MEDLEY_CHECK(table.rows > 0 && table.columns > 0);
    MEDLEY_CHECK_EQ(static_cast<int64_t>(table.costs.size()), int64_t{table.rows} * table.columns);
  }
  for (const int32_t unary : problem.unary_of)
    MEDLEY_CHECK(unary >= 0 && at(unary) < problem.unaries.size());
  for (const PbqpEdge& edge : problem.edges) {
    MEDLEY_CHECK(edge.u >= 0 && edge.u < edge.v && edge.v < problem.num_variables());
    MEDLEY_CHECK(edge.table >= 0 && at(edge.table) < problem.tables.size());
    MEDLEY_CHECK_EQ(problem.tables[at(edge.table)].rows, problem.num_choices(edge.u));
    MEDLEY_CHECK_EQ(problem.tables[at(edge.table)].columns, problem.num_choices(edge.v));
  }
}

int64_t cost(const Pbqp& problem, std::span<const int32_t> choices) {
  MEDLEY_CHECK_EQ(choices.size(), problem.unary_of.size());
  int64_t sum = 0;
  for (size_t v = 0; v < choices.size(); ++v)
    sum = plus(sum, problem.unaries[at(problem.unary_of[v])][at(choices[v])]);
  for (const PbqpEdge& edge : problem.edges) {
    const PbqpTable& table = problem.tables[at(edge.table)];
    sum = plus(sum,
               table.costs[at(choices[at(edge.u)]) * at(table.columns) + at(choices[at(edge.v)])]);
  }
  return sum;
}

std::optional<PbqpSolution> solve(const Pbqp& problem, const PbqpOptions& options) {
  if (options.method == PbqpMethod::kExhaustive) return solve_exhaustively(problem);
  return solve_by_elimination(problem, options);
}

}  // namespace medley
