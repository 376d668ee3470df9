// For any input a planner returns a valid plan, the reason why none exists, or a caller's error; it
// never crashes, hangs, or returns an invalid answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/graph/verify.h"
#include "medley/planner/planner.h"
#include "medley/profile/profile.h"
#include "medley/sharding/coupling.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/ratio_problem.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

std::string read(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

constexpr const char* kGraph = "tests/data/mlp.graph";
constexpr const char* kCluster = "tests/data/clusters/demo.yaml";

// Returns a text that a user may write in place of a number.
std::string other_number(std::mt19937_64& random) {
  static const char* const kNumbers[] = {
      "0", "1", "2", "3", "-1", "7", "16", "1.5", "1e9", "1e-9", "1e30", "1e300", "4096", "65537"};
  return kNumbers[random() % std::size(kNumbers)];
}

// Replaces some numbers; sometimes drops or repeats a line.
std::string mutated(const std::string& text, std::mt19937_64& random) {
  std::string result = text;
  for (auto edits = 1 + random() % 2; edits > 0; --edits) {
    const size_t start = random() % result.size();
    const size_t digit = result.find_first_of("0123456789", start);
    if (random() % 6 == 0 || digit == std::string::npos) {
      const size_t line = result.rfind('\n', start) + 1;
      const size_t end = std::min(result.find('\n', start), result.size() - 1) + 1;
      if (random() % 2 == 0)
        result.erase(line, end - line);
      else
        result.insert(line, result.substr(line, end - line));
      if (result.empty()) return text;
      continue;
    }
    const size_t last = result.find_first_not_of("0123456789.", digit);
    result.replace(digit, std::min(last, result.size()) - digit, other_number(random));
  }
  return result;
}

// Every command and binding checks its graph like this.
bool is_graph(const Graph& graph) {
  try {
    verify(graph);
    return true;
  } catch (const Error&) {
    return false;
  }
}

int64_t rows_in(const Plan& plan) {
  int64_t rows = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Microbatch& microbatch : pipeline.microbatches) {
      rows += microbatch.rows;
      if (microbatch.lengths.empty()) continue;
      EXPECT_EQ(std::accumulate(microbatch.lengths.begin(), microbatch.lengths.end(), int64_t{0}),
                microbatch.rows);
    }
  return rows;
}

struct Count {
  int plans = 0, infeasible = 0, refused = 0;
};

// Plans, and checks the answer against the requirements of a plan.
void try_to_plan(const Request& request, const std::string& what, Count& count) {
  try {
    const Outcome outcome = plan(request);
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      EXPECT_FALSE(no->reason.empty()) << what;
      ++count.infeasible;
      return;
    }
    const Plan& found = std::get<Plan>(outcome);
    verify(found,
           request.graph,
           request.cluster,
           row_coupling(request.graph, factorize(request.graph)));
    EXPECT_EQ(rows_in(found), request.global_batch) << what;
    const Program program = lower(request.graph, found, request.cluster, request.optimizer);
    EXPECT_FALSE(find_misfit(program, request)) << what;
    EXPECT_GE(simulate(program, CostModel(request.cluster)).step.value, 0) << what;
    ++count.plans;
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller) << error.what() << "\n" << what;
    ++count.refused;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n" << what;
  }
}

class BadInput : public ::testing::Test {
 protected:
  Request request(const Graph& of, const Cluster& on, std::string_view strategy, int64_t rows) {
    return {.graph = of,
            .cluster = on,
            .strategy = std::string(strategy),
            .global_batch = rows,
            .devices = {},
            .optimizer = {}};
  }
  // Returns a small cluster, or nullopt: planning for thousands of devices does not test input.
  std::optional<Cluster> small_cluster(const std::string& yaml) {
    const Cluster cluster = parse_cluster(yaml, "c.yaml", catalogue);
    if (cluster.devices.size() > 12) return std::nullopt;
    return cluster;
  }

  const Catalogue catalogue = read_catalogue("data/devices");
  const Graph graph = parse_graph(read(kGraph), kGraph);
  const Cluster cluster = parse_cluster(read(kCluster), kCluster, catalogue);
  Count count;
};

TEST_F(BadInput, FewerRowsThanDevices) {
  for (const Strategy& strategy : strategies())
    for (int64_t rows = 1; rows <= 3; ++rows)
      try_to_plan(request(graph, cluster, strategy.name, rows), std::string(strategy.name), count);
  EXPECT_EQ(count.plans, 3 * static_cast<int>(strategies().size()));
}

TEST_F(BadInput, OneDevice) {
  for (const Strategy& strategy : strategies()) {
    Request wanted = request(graph, cluster, strategy.name, 5);
    wanted.devices = {"slow/0/1"};
    try_to_plan(wanted, std::string(strategy.name), count);
  }
  EXPECT_EQ(count.plans, static_cast<int>(strategies().size()));
}

// A node without a network to the others is named, unless it is unused.
TEST_F(BadInput, UnreachableNode) {
  Cluster apart = cluster;
  apart.networks.pop_back();
  for (const Strategy& strategy : strategies()) {
    try {
      static_cast<void>(plan(request(graph, apart, strategy.name, 8)));
      ADD_FAILURE() << strategy.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller);
      EXPECT_THAT(error.what(), HasSubstr("fast"));
      EXPECT_THAT(error.what(), HasSubstr("slow"));
    }
    Request near = request(graph, apart, strategy.name, 8);
    near.devices = {"fast/0/0", "fast/0/1"};
    try_to_plan(near, std::string(strategy.name), count);
  }
  EXPECT_EQ(count.plans, static_cast<int>(strategies().size()));
}

TEST_F(BadInput, MutatedGraphs) {
  std::mt19937_64 random(23);
  const std::string text = read(kGraph);
  for (int round = 0; round < 250; ++round) {
    const std::string changed = mutated(text, random);
    try {
      const Graph other = parse_graph(changed, "g.graph");
      if (!is_graph(other)) continue;
      const auto& strategy = strategies()[random() % strategies().size()];
      try_to_plan(request(other, cluster, strategy.name, 1 + static_cast<int64_t>(random() % 40)),
                  changed,
                  count);
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
    }
  }
  EXPECT_GT(count.plans, 10);
}

TEST_F(BadInput, MutatedClusters) {
  std::mt19937_64 random(29);
  const std::string text = read(kCluster);
  for (int round = 0; round < 140; ++round) {
    const std::string changed = mutated(text, random);
    try {
      const std::optional<Cluster> other = small_cluster(changed);
      if (!other) continue;
      const auto& strategy = strategies()[random() % strategies().size()];
      try_to_plan(request(graph, *other, strategy.name, 1 + static_cast<int64_t>(random() % 40)),
                  changed,
                  count);
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
    }
  }
  EXPECT_GT(count.plans, 30);
}

// Times of other devices are rejected; all other times give a plan.
TEST_F(BadInput, MutatedProfiles) {
  std::mt19937_64 random(37);
  const Cluster measured = parse_cluster(R"(format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: A100-40GB, devices_per_node: 1}
  - {name: slow, count: 1, device: T4-16GB, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 50 us}
)",
                                         "c.yaml",
                                         catalogue);
  const std::string text = read("tests/data/profile_1.json");
  for (int round = 0; round < 40; ++round) {
    const std::string changed = mutated(text, random);
    try {
      const CostModel costs(measured, parse_profile(changed, "p.json"));
      const auto& strategy = strategies()[random() % strategies().size()];
      Request wanted = request(graph, measured, strategy.name, 8);
      wanted.costs = &costs;
      try_to_plan(wanted, changed, count);
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
    }
  }
  EXPECT_GT(count.plans, 5);

  const Profile others = parse_profile(text, "p.json");
  try {
    static_cast<void>(CostModel(cluster, others));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("found op times of A100-40GB, T4-16GB"));
  }
}

// Hand-written plans use the same code: plans that pass verify() are lowered or rejected with a
// message, and their ratios are found.
TEST_F(BadInput, MutatedPlans) {
  std::mt19937_64 random(31);
  int lowered = 0;
  for (int round = 0; round < 800; ++round) {
    const std::string file = random() % 2 == 0 ? "tests/data/plans/mlp_choices.json"
                                               : "tests/data/plans/mlp_hidden.json";
    const std::string changed = mutated(read(file), random);
    try {
      const Plan plan = parse_plan(changed, "p.json");
      if (plan.global_batch > 100'000) continue;
      verify(plan, graph, cluster);
      const CostModel costs(cluster);
      const Program program = lower(graph, plan, cluster, {});
      ++lowered;
      const auto outcome = best_ratios(ratio_problem(plan, program, costs));
      if (const auto* ratios = std::get_if<Ratios>(&outcome)) {
        const Plan better = with_ratios(plan, ratios->shares);
        EXPECT_EQ(rows_in(better), plan.global_batch) << changed;
        verify(better, graph, cluster);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what() << "\n" << changed;
    }
  }
  EXPECT_GT(lowered, 30);
}

}  // namespace
}  // namespace medley
