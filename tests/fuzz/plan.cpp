// An accepted plan prints, and parses back to the same bytes. If it fits a graph and a cluster it
// is lowered, and the program passes its verifier.

#include "medley/plan/plan.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/plan/verify_rows.h"
#include "medley/program/program.h"
#include "medley/sharding/coupling.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

namespace {

// More rows only take more time.
constexpr int64_t kMostRows = 100'000;
constexpr size_t kMostMicrobatches = 64;

struct Samples {
  Graph graph = parse_graph(read_sample("tests/data/mlp.graph"), "mlp.graph");
  Cluster cluster = parse_cluster(read_sample("tests/data/clusters/demo.yaml"),
                                  "demo.yaml",
                                  read_catalogue(MEDLEY_ROOT "/data/devices"));
  std::string cross_sample_at = row_coupling(graph, factorize(graph));
};

bool is_small(const Plan& plan) {
  for (const Pipeline& pipeline : plan.pipelines)
    if (pipeline.microbatches.size() > kMostMicrobatches) return false;
  return plan.global_batch <= kMostRows;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Samples samples;
  Plan plan;
  if (!accepts([&] { plan = parse_plan(text_of(data, size), "fuzz.json"); })) return 0;
  const std::string printed = print(plan);
  const Plan again = parse_plan(printed, "printed.json");
  require_equal(print(again), printed, "what is printed parses back equal");
  require(again == plan, "what is printed parses back equal");
  require_equal(hash(again), hash(plan), "equal plans have equal hashes");

  if (!accepts([&] { verify(plan, samples.graph, samples.cluster, samples.cross_sample_at); }))
    return 0;
  verify_rows(plan);
  if (!is_small(plan)) return 0;
  accepts([&] {
    const Program program = lower(samples.graph, plan, samples.cluster, Optimizer{});
    verify(program);
  });
  return 0;
}
