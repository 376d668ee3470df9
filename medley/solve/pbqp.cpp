#include "medley/solve/pbqp.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "medley/base/error.h"
#include "medley/solve/pbqp_contract.h"
#include "medley/solve/pbqp_core.h"
#include "medley/solve/pbqp_eliminate.h"
#include "medley/solve/pbqp_lifted.h"
#include "medley/solve/pbqp_search.h"

namespace medley {
namespace {

// Elimination of this many entries takes a few hundredths of a second.
constexpr double kLittleWork = 1e7;
constexpr int kFewRounds = 30;
constexpr int64_t kContractedEntries = 4096;  // limit of removing a variable

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

void verify_found(bool found, const PbqpOptions& options) {
  if (!found)
    throw Error(
        Blame::kCaller,
        options.seconds
            ? fmt::format("pbqp: no allowed assignment was found in {} s", *options.seconds)
            : fmt::format("pbqp: no allowed assignment was found in {} rounds", options.rounds));
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

// Solves the core of a problem without dead ends.
class CoreSolver {
 public:
  CoreSolver(const Pbqp& problem, const PbqpOptions& options, pbqp::Clock::time_point deadline)
      : problem_(problem), options_(options), deadline_(deadline) {}

  std::optional<PbqpSolution> run() {
    core_ = reducer_.core_of(problem_);
    if (!reducer_.remove_dead_ends(core_)) return std::nullopt;
    if (options_.method != PbqpMethod::kEliminate && !contracted()) return std::nullopt;
    auto out = options_.method == PbqpMethod::kLifted      ? lifted(kAllRounds)
               : options_.method == PbqpMethod::kEliminate ? eliminated_at_any_cost()
                                                           : by_what_is_fast();
    if (out) out->dead_ends = static_cast<int>(core_.dropped);
    return out;
  }

 private:
  static constexpr int kAllRounds = std::numeric_limits<int>::max();

  // Plain elimination works without contraction, and so tests it.
  bool contracted() {
    const auto most = at(std::min(kContractedEntries, options_.table_cap));
    std::optional<pbqp::Core> left = contraction_.emplace(reducer_).contract(core_, most);
    if (left) core_ = std::move(*left);
    return left && reducer_.remove_dead_ends(core_);
  }

  std::optional<PbqpSolution> solution(const std::vector<int32_t>& choices,
                                       PbqpMethod method) const {
    return solution_of(problem_, contraction_ ? contraction_->expand(choices) : choices, method);
  }

  std::optional<PbqpSolution> solution(const pbqp::LiftedResult& result) const {
    auto out = solution(result.choices, PbqpMethod::kLifted);
    if (!out) return out;
    out->lower_bound = result.lower;
    out->largest_table = result.largest_table;
    out->work = result.work;
    return out;
  }

  std::optional<PbqpSolution> by_what_is_fast() {
    const auto table_cap = static_cast<double>(options_.table_cap);
    // Searching an order of more work takes longer than the dual.
    if (const auto order = pbqp::find_order(core_, table_cap, kLittleWork))
      return eliminated(*order);
    const pbqp::LiftedResult soon = pbqp::solve_lifted(
        reducer_, core_, options_, deadline_, std::min(kFewRounds, options_.rounds));
    if (soon.lower >= kForbidden) return std::nullopt;
    if (soon.cost == soon.lower) return solution(soon);
    if (const auto order =
            pbqp::find_order(core_, table_cap, static_cast<double>(options_.work_cap)))
      return eliminated(*order);
    if (options_.rounds > kFewRounds) return lifted(options_.rounds);
    verify_found(soon.cost < kForbidden, options_);
    return solution(soon);
  }

  std::optional<PbqpSolution> eliminated_at_any_cost() {
    const auto order = pbqp::find_order(
        core_, static_cast<double>(options_.table_cap), std::numeric_limits<double>::max());
    if (order) return eliminated(*order);
    throw Error(Blame::kCaller,
                fmt::format("pbqp: elimination: every order needs a table of more than {} entries",
                            options_.table_cap));
  }

  std::optional<PbqpSolution> eliminated(const pbqp::EliminationOrder& order) {
    const pbqp::Elimination result = pbqp::eliminate(reducer_.pool(), core_, order, deadline_);
    if (result.outcome == pbqp::Elimination::Outcome::kInfeasible) return std::nullopt;
    if (result.outcome == pbqp::Elimination::Outcome::kOutOfTime) return lifted(kAllRounds);
    auto out = solution(result.choices, PbqpMethod::kEliminate);
    if (!out) return out;
    out->largest_table = result.largest_table;
    out->work = result.work;
    return out;
  }

  std::optional<PbqpSolution> lifted(int rounds) {
    const pbqp::LiftedResult result =
        pbqp::solve_lifted(reducer_, core_, options_, deadline_, rounds);
    if (result.lower >= kForbidden) return std::nullopt;
    verify_found(result.cost < kForbidden, options_);
    return solution(result);
  }

  const Pbqp& problem_;
  const PbqpOptions& options_;
  const pbqp::Clock::time_point deadline_;
  pbqp::Reducer reducer_;
  pbqp::Core core_;
  std::optional<pbqp::Contraction> contraction_;
};

std::optional<PbqpSolution> solve_by_search(const Pbqp& problem,
                                            const PbqpOptions& options,
                                            pbqp::Clock::time_point deadline) {
  pbqp::Reducer reducer;
  const pbqp::Core core = reducer.core_of(problem);
  const pbqp::SearchResult result = pbqp::search(reducer.pool(), core, deadline);
  if (result.lower >= kForbidden) return std::nullopt;
  verify_found(result.choices.size() == problem.unary_of.size(), options);
  auto out = solution_of(problem, result.choices, PbqpMethod::kAStar);
  if (out) out->lower_bound = std::min(out->cost, result.lower);
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
  const auto start = pbqp::Clock::now();
  const auto deadline = options.seconds
                            ? start + std::chrono::duration_cast<pbqp::Clock::duration>(
                                          std::chrono::duration<double>(*options.seconds))
                            : pbqp::Clock::time_point::max();
  auto out = options.method == PbqpMethod::kExhaustive ? solve_exhaustively(problem)
             : options.method == PbqpMethod::kAStar    ? solve_by_search(problem, options, deadline)
                                                    : CoreSolver(problem, options, deadline).run();
  if (out) out->seconds = std::chrono::duration<double>(pbqp::Clock::now() - start).count();
  return out;
}

}  // namespace medley
