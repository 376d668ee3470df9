#pragma once

// From a plan to what every device executes. One lowering for every kind of parallelism: each op
// becomes its local form, and where a value is not in the state that its reader needs, a conversion
// is put in between. Knows no strategy.

#include "medley/cluster/cluster.h"
#include "medley/lower/complete_stages.h"
#include "medley/plan/plan.h"
#include "medley/program/program.h"

namespace medley {

struct LowerOptions {
  // Gradients are all-reduced in buckets of about this size. 0: so large that what they wait for
  // the first byte is little of what they take, within 1 and 25 MiB.
  int64_t bucket_bytes = 0;
  bool keep_gradients = false;  // until the next step, for reading back
  // A step that fails can be taken back, or finished without the others (program/commit.h).
  bool commit = false;
  bool hash_plan = true;  // false: of a program that is only priced
};

// Requires: verify(plan, graph, cluster) has passed. Throws Error(kCaller) where an entry of the
// plan does not fit the graph.
Program lower(const Graph& graph,
              const Plan& plan,
              const Cluster& cluster,
              const Optimizer& optimizer,
              const LowerOptions& options = {});
Program lower(const GraphAnalysis& analysis,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options = {});
Program lower(PreparedStages& prepared,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options = {});
// `completed`: all stages of the plan.
Program lower(const GraphAnalysis& analysis,
              std::vector<Completed> completed,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options = {});

// What the first of these lowers: a graph with the scale of its loss where a device computes in
// f16.
GraphAnalysis analyse(const Graph& graph,
                      const Plan& plan,
                      const Cluster& cluster,
                      const Optimizer& optimizer);

// Why a model cannot be trained by several pipelines: its forward phase changes a buffer, and what
// one pipeline changes, no other has seen. Empty: it can, as far as that goes.
std::string why_one_pipeline(const Graph& graph);

// One stage by itself, for pricing: `plan` has a single one, which decides about `stage` as
// PreparedStages has it. What it receives comes from, and what it sends goes to, one imaginary
// device. Each micro-batch goes forward and at once backward.
LoweredStage lower_alone(Completed stage,
                         const Plan& plan,
                         const Cluster& cluster,
                         const LowerOptions& options = {});

}  // namespace medley
