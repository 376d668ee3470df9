// Pairwise problems in the shape of a transformer's SPMD synthesis. The budget is 0.3 s if layers
// repeat and 1 s for 48 different layers. Counters: variables, edges, entries of the largest joint
// table, entries of all of them, and the process's peak memory.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "medley/base/error.h"
#include "medley/testing/pbqp_transformer.h"

namespace medley {
namespace {

void solve_problem(benchmark::State& state, const TransformerProblem& shape, PbqpMethod method) {
  const Pbqp problem = transformer_problem(shape);
  std::optional<PbqpSolution> solution;
  for (auto _ : state) solution = solve(problem, {.method = method});
  MEDLEY_CHECK(solution.has_value());
  size_t choices = 0;
  for (int v = 0; v < problem.num_variables(); ++v)
    choices += static_cast<size_t>(problem.num_choices(v));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["variables"] = problem.num_variables();
  state.counters["edges"] = static_cast<double>(problem.edges.size());
  state.counters["choices"] = static_cast<double>(choices) / problem.num_variables();
  state.counters["dropped"] = solution->dead_ends;
  state.counters["largest"] = static_cast<double>(solution->largest_table);
  state.counters["work"] = static_cast<double>(solution->work);
  state.counters["gap"] = static_cast<double>(solution->cost - solution->lower_bound) /
                          static_cast<double>(solution->cost);
  state.counters["MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
  state.SetLabel(solution->method == PbqpMethod::kEliminate ? "elimination" : "lifted");
}

const std::vector<TransformerProblem::Axis> kTwoAxes{{2, 2, 770}, {4, 1, 40}};

void repeated(benchmark::State& state, PbqpMethod method) {
  solve_problem(state, {.layers = static_cast<int>(state.range(0))}, method);
}
void different(benchmark::State& state, PbqpMethod method) {
  solve_problem(state, {.layers = static_cast<int>(state.range(0)), .spread = 0.1}, method);
}
void two_axes(benchmark::State& state, PbqpMethod method) {
  solve_problem(state, {.layers = static_cast<int>(state.range(0)), .axes = kTwoAxes}, method);
}
void two_axes_different(benchmark::State& state, PbqpMethod method) {
  solve_problem(
      state, {.layers = static_cast<int>(state.range(0)), .axes = kTwoAxes, .spread = 0.1}, method);
}

#define MEDLEY_PBQP_BENCHMARK(what, method) \
  BENCHMARK_CAPTURE(what, method, PbqpMethod::method)->Unit(benchmark::kMillisecond)

MEDLEY_PBQP_BENCHMARK(repeated, kAuto)->Arg(12)->Arg(48)->Arg(80);
MEDLEY_PBQP_BENCHMARK(different, kAuto)->Arg(12)->Arg(48)->Arg(80);
MEDLEY_PBQP_BENCHMARK(repeated, kEliminate)->Arg(12)->Arg(48)->Arg(80);
MEDLEY_PBQP_BENCHMARK(different, kEliminate)->Arg(12)->Arg(48);
MEDLEY_PBQP_BENCHMARK(repeated, kLifted)->Arg(12)->Arg(48)->Arg(80);
MEDLEY_PBQP_BENCHMARK(different, kLifted)->Arg(12)->Arg(48)->Arg(80);
MEDLEY_PBQP_BENCHMARK(two_axes, kAuto)->Arg(12)->Arg(48)->Arg(80);
MEDLEY_PBQP_BENCHMARK(two_axes_different, kAuto)->Arg(12);

}  // namespace
}  // namespace medley
