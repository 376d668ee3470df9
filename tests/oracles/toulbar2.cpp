// toulbar2 (https://toulbar2.github.io/toulbar2) as the oracle of the pairwise solver. It proves
// optima of weighted constraint satisfaction, which includes our pairwise case: costs are integers
// too, and costs from the file's upper bound on are forbidden, like kForbidden.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "medley/base/error.h"
#include "medley/solve/pbqp.h"
#include "medley/testing/pbqp_transformer.h"

namespace medley {
namespace {

constexpr int kSeconds = 30;  // for each instance and each solver

// Format: https://toulbar2.github.io/toulbar2/formats/wcspformat.html
std::string wcsp(const Pbqp& problem) {
  const int n = problem.num_variables();
  int most = 0;
  std::string sizes, functions;
  size_t count = 0;
  const auto add = [&](const std::string& variables, const std::vector<std::string>& tuples) {
    functions += fmt::format("{} 0 {}\n", variables, tuples.size());
    for (const std::string& tuple : tuples) functions += tuple + "\n";
    ++count;
  };
  for (int v = 0; v < n; ++v) {
    most = std::max(most, problem.num_choices(v));
    sizes += fmt::format("{} ", problem.num_choices(v));
    std::vector<std::string> tuples;
    const auto& unary =
        problem.unaries[static_cast<size_t>(problem.unary_of[static_cast<size_t>(v)])];
    for (size_t i = 0; i < unary.size(); ++i) tuples.push_back(fmt::format("{} {}", i, unary[i]));
    add(fmt::format("1 {}", v), tuples);
  }
  for (const PbqpEdge& edge : problem.edges) {
    const PbqpTable& table = problem.tables[static_cast<size_t>(edge.table)];
    std::vector<std::string> tuples;
    for (int32_t row = 0; row < table.rows; ++row)
      for (int32_t column = 0; column < table.columns; ++column)
        tuples.push_back(
            fmt::format("{} {} {}",
                        row,
                        column,
                        table.costs[static_cast<size_t>(row * table.columns + column)]));
    add(fmt::format("2 {} {}", edge.u, edge.v), tuples);
  }
  return fmt::format("medley {} {} {} {}\n{}\n{}", n, most, count, kForbidden, sizes, functions);
}

// toulbar2's result: the least cost, infeasible, or no result in time.
struct Verdict {
  bool is_proved = false;
  std::optional<int64_t> least;
};

Verdict ask_toulbar2(const Pbqp& problem) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("medley-{}.wcsp", ::getpid());
  std::ofstream(file) << wcsp(problem);
  const std::string command = fmt::format(TOULBAR2 " {} -timer={} 2>&1", file.string(), kSeconds);
  std::string said;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) throw Error(Blame::kEnvironment, "cannot start " TOULBAR2);
  std::array<char, 4096> piece{};
  while (std::fgets(piece.data(), piece.size(), pipe)) said += piece.data();
  ::pclose(pipe);
  std::filesystem::remove(file);
  if (const size_t at = said.find("\nOptimum: "); at != std::string::npos)
    return {true, std::stoll(said.substr(at + 10))};
  for (const char* none : {"\nNo solution in ", "\nNo solution found by initial propagation!"})
    if (said.find(none) != std::string::npos) return {true, std::nullopt};
  if (said.find("Time limit expired") == std::string::npos)
    ADD_FAILURE() << "what toulbar2 says is not understood here:\n" << said;
  return {};
}

struct Count {
  int compared = 0, proved = 0, without_answer = 0, out_of_time = 0;
};

void compare(const Pbqp& problem,
             const PbqpOptions& options,
             const Verdict& verdict,
             Count& count) {
  if (!verdict.is_proved) {
    ++count.out_of_time;
    return;
  }
  ++count.compared;
  const auto found = solve(problem, options);
  ASSERT_EQ(found.has_value(), verdict.least.has_value());
  if (!found) {
    ++count.without_answer;
    return;
  }
  EXPECT_EQ(cost(problem, found->choices), found->cost);
  EXPECT_GE(found->cost, *verdict.least);
  EXPECT_LE(found->lower_bound, *verdict.least);
  if (found->lower_bound < found->cost) return;
  EXPECT_EQ(found->cost, *verdict.least);
  ++count.proved;
}

// Forbids `tightness` of 100 pairs of choices.
Pbqp random_problem(std::mt19937_64& random, int variables, int edges, int choices, int tightness) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const int most = std::array{2, 20, 1000, 1'000'000}[random() % 4];
  Pbqp out;
  for (int v = 0; v < variables; ++v) {
    out.unary_of.push_back(v);
    out.unaries.emplace_back(static_cast<size_t>(1 + below(choices)));
    for (int64_t& cost : out.unaries.back()) cost = below(most);
  }
  for (int e = 0; e < edges; ++e) {
    const int u = below(variables - 1), v = u + 1 + below(variables - 1 - u);
    PbqpTable table{out.num_choices(u), out.num_choices(v), {}};
    for (int i = 0; i < table.rows * table.columns; ++i)
      table.costs.push_back(below(100) < tightness ? kForbidden : below(most));
    out.edges.push_back({u, v, static_cast<int32_t>(out.tables.size())});
    out.tables.push_back(std::move(table));
  }
  verify(out);
  return out;
}

void report(const Count& count) {
  fmt::print(
      "{} answers compared: {} of ours proved, {} without an answer; toulbar2 was out of time {} "
      "times\n",
      count.compared,
      count.proved,
      count.without_answer,
      count.out_of_time);
}

// Runs as in planning, and with each method without a size limit.
TEST(Toulbar2, FindsTheSameOptima) {
  std::mt19937_64 random(1);
  Count count;
  for (int run = 0; run < 1000; ++run) {
    SCOPED_TRACE(run);
    const int variables = 2 + static_cast<int>(random() % 30);
    const int edges = static_cast<int>(random() % static_cast<uint64_t>(3 * variables));
    const Pbqp problem = random_problem(random,
                                        variables,
                                        edges,
                                        2 + static_cast<int>(random() % 6),
                                        static_cast<int>(random() % 5) * 10);
    const Verdict verdict = ask_toulbar2(problem);
    for (const PbqpMethod method : {PbqpMethod::kAuto, PbqpMethod::kLifted})
      compare(problem, {.method = method, .seconds = kSeconds}, verdict, count);
  }
  report(count);
  EXPECT_GT(count.proved, 1000);
  EXPECT_GT(count.without_answer, 100);
}

// If caps and rounds prevent a proof, the result is no better than the optimum, and its bound no
// worse.
TEST(Toulbar2, BoundsHoldWithoutProof) {
  std::mt19937_64 random(2);
  Count count;
  for (int run = 0; run < 200; ++run) {
    SCOPED_TRACE(run);
    const Pbqp problem = random_problem(random, 25, 60, 5, 0);
    compare(problem,
            {.table_cap = 50, .work_cap = 100, .window_cap = 20, .rounds = 3, .seconds = {}},
            ask_toulbar2(problem),
            count);
  }
  report(count);
  EXPECT_GT(count.compared, 100);
  EXPECT_LT(count.proved, count.compared);
}

// Problems in the shape of planning, with costs of its size.
TEST(Toulbar2, FindsTheSameOptimaOfTransformers) {
  Count count;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const Pbqp problem = transformer_problem({.layers = 2, .spread = 0.3, .seed = seed});
    compare(problem, {.seconds = kSeconds}, ask_toulbar2(problem), count);
  }
  report(count);
  EXPECT_GT(count.proved, 0);
}

}  // namespace
}  // namespace medley
