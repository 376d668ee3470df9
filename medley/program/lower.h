#pragma once

// From a plan to what every device executes. One lowering for every kind of parallelism: each op
// becomes its local form, and where a value is not in the state that its reader needs, a conversion
// is put in between. Knows no strategy.

#include "medley/cluster/cluster.h"
#include "medley/plan/plan.h"
#include "medley/program/complete.h"
#include "medley/program/prepare.h"
#include "medley/program/program.h"
#include "medley/program/stages.h"

namespace medley {

struct LowerOptions {
  // Gradients are all-reduced in buckets of about this size. 0: so large that what they wait for
  // the first byte is little of what they take, within 1 and 25 MiB.
  int64_t bucket_bytes = 0;
  bool keep_gradients = false;  // until the next step, for reading back
};

// What lowering finds out about a graph before it looks at a plan: shared by the plans of a search.
struct Groundwork {
  Graph graph;
  Optimizer optimizer;
  Prepared prepared;
  Factors factors;         // of the prepared graph
  std::string coupled_at;  // row_coupling() of the graph
  std::string graph_hash;
};
Groundwork lay_ground(const Graph& graph, const Optimizer& optimizer);

// The decisions of a stage with the graph that they are about (composites expanded), for lowering
// and for explain.
struct Completed {
  Prepared prepared;
  Factors factors;
  Assignment assignment;
};
// Of all stages of a plan with one pipeline.
std::vector<Completed> complete_stages(const Groundwork& ground, const Plan& plan);

// Requires: verify(plan, graph, cluster) has passed. Throws Error(kCaller) where an entry of the
// plan does not fit the graph.
Program lower(const Graph& graph,
              const Plan& plan,
              const Cluster& cluster,
              const Optimizer& optimizer,
              const LowerOptions& options = {});
Program lower(const Groundwork& ground,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options = {});

// What one stage of a partition computes, prepared, with nothing decided. `names`: stable_names()
// of the graph; `recompute`: as in a plan, with so many micro-batches in flight.
Completed prepare_stage(const Groundwork& ground,
                        const std::vector<std::string>& names,
                        const Partition& parts,
                        int stage,
                        const std::string& recompute = "none",
                        int in_flight = 1);

// One stage by itself, for pricing: `plan` has a single one, which decides about `stage` as
// prepare_stage() has it. What it receives comes from, and what it sends goes to, one imaginary
// device. Each micro-batch goes forward and at once backward.
LoweredStage lower_alone(Completed stage,
                         const Plan& plan,
                         const Cluster& cluster,
                         const LowerOptions& options = {});

}  // namespace medley
