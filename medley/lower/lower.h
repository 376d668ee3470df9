#pragma once

// Turns a plan into each device's program. One lowering for every kind of parallelism: each op
// becomes its local form, and a redistribution precedes a reader that needs another placement.
// Knows no strategy.

#include "medley/cluster/cluster.h"
#include "medley/lower/complete_stages.h"
#include "medley/plan/plan.h"
#include "medley/program/program.h"

namespace medley {

struct LowerOptions {
  // The bucket size of gradient all-reduces, in bytes. 0: large enough that the latency is a small
  // part of the time, within 1 and 25 MiB.
  int64_t bucket_bytes = 0;
  bool keep_gradients = false;  // until the next step, for reading back
  // A failed step can be undone, or finished without the others (program/commit.h).
  bool commit = false;
  bool hash_plan = true;  // false: only for pricing
};

// Requires: verify(plan, graph, cluster) has passed. Throws Error(kCaller) if an entry of the plan
// does not fit the graph.
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
// Lowers decided stages. `completed`: all stages of the plan.
Program lower(const GraphAnalysis& analysis,
              std::vector<Completed> completed,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options = {});

// Returns the analysis for lowering a graph, with the scale of its loss if a device computes in
// f16.
GraphAnalysis analyse(const Graph& graph,
                      const Plan& plan,
                      const Cluster& cluster,
                      const Optimizer& optimizer);

// Returns why a model needs one pipeline: its forward phase changes a buffer, and no other pipeline
// would see the change. Empty if it does not.
std::string why_one_pipeline(const Graph& graph);

// Lowers a single stage for pricing. `plan` has one stage, with the decisions about `stage` of
// PreparedStages. It receives from and sends to one imaginary device. Each micro-batch goes
// forward, then immediately backward.
LoweredStage lower_alone(Completed stage,
                         const Plan& plan,
                         const Cluster& cluster,
                         const LowerOptions& options = {});

}  // namespace medley
