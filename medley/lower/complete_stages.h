#pragma once

// The ops of each stage of a plan, and the plan's decisions about them, before lowering. Results
// that do not depend on a plan are computed once for all plans of a search. Knows nothing of
// devices.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "medley/lower/complete.h"
#include "medley/plan/plan.h"
#include "medley/prepare/prepare.h"
#include "medley/stages/stages.h"

namespace medley {

// The analysis of a graph that all plans share.
struct GraphAnalysis {
  Graph graph;
  Optimizer optimizer;
  std::shared_ptr<const Prepared> prepared;
  std::shared_ptr<const Factors> factors;  // for the prepared graph
  std::string coupling;                    // row_coupling() of the graph
  std::string graph_hash;
};
GraphAnalysis analyse(const Graph& graph, const Optimizer& optimizer);

// The decisions of a stage with their graph (composites expanded), for lowering and for explain.
struct Completed {
  std::shared_ptr<const Prepared> prepared;
  std::shared_ptr<const Factors> factors;
  Assignment assignment;
  // Composites by round, with the ids before the round.
  std::vector<std::vector<OpId>> expanded{};
};

// Returns the positions in the forward sequence at which the later stages of a pipeline (`number`
// of the plan) begin: the first op that a stage names, or the next one that only one stage
// computes. `names`: stable_names(). Throws Error(kCaller) if a stage would be empty.
std::vector<int32_t> cuts_of(const Pipeline& pipeline,
                             size_t number,
                             const Positions& positions,
                             const std::vector<std::string>& names);

// The part of a stage's pipeline in work that is done once for all pipelines.
struct Duties {
  // Whether its gradients count for the norm, unless an earlier stage has them. One pipeline's do.
  // If owners divide a parameter, each owner counts its share.
  bool counts = true;
  UpdatedParameters updated{};
  auto operator<=>(const Duties&) const = default;
};

// Prepares each stage of pipelines over one graph once for all plans. Threads may share one.
class PreparedStages {
 public:
  // Requires: `analysis` outlives this.
  explicit PreparedStages(const GraphAnalysis& analysis);

  const GraphAnalysis& analysis() const { return analysis_; }
  const std::vector<std::string>& names() const { return names_; }  // [op] stable_names()
  const Positions& positions() const { return positions_; }

  // Returns the undecided ops of a stage of a partition by names(). `recompute`: as in a plan, with
  // so many micro-batches in flight. `blocks`: as in a StageContext.
  Completed stage(const Partition& parts,
                  int stage,
                  const std::string& recompute = "none",
                  int in_flight = 1,
                  const Duties& duties = {},
                  const std::optional<std::vector<size_t>>& blocks = {});

 private:
  // Stages with equal keys compute the same.
  struct Key {
    int32_t begin = 0, end = 0;  // positions; kNone: to the last
    std::string recompute;
    int in_flight = 1;
    Duties duties;
    std::optional<std::vector<size_t>> blocks;  // as in a StageContext, like the rest
    std::set<std::string> received, counted_elsewhere;
    auto operator<=>(const Key&) const = default;
  };
  Completed prepare_stage(const Partition& parts, const Key& key, int stage) const;

  const GraphAnalysis& analysis_;
  std::vector<std::string> names_;
  Positions positions_;
  std::mutex mutex_;
  std::map<Key, Completed> known_;
};

// Applies the plan's decisions about stage `s` of a pipeline, and complete() for the rest.
Completed complete_stage(Completed prepared, const Plan& plan, size_t pipeline, size_t s);

// Returns a prepared stage with the decisions of the same stage of another size.
Completed complete_isomorphic(Completed prepared, const Completed& decided);

// Returns the undecided stages of all pipelines, in order. `planned`: the same stages of another
// size, whose recomputed blocks these reuse; empty: each finds its own.
std::vector<Completed> prepare_stages(const GraphAnalysis& analysis,
                                      const Plan& plan,
                                      const std::vector<Completed>& planned = {});

// Returns the stages with the decisions of the plan.
std::vector<Completed> complete_stages(std::vector<Completed> prepared, const Plan& plan);
std::vector<Completed> complete_stages(const GraphAnalysis& analysis, const Plan& plan);
std::vector<Completed> complete_stages(PreparedStages& stages, const Plan& plan);

}  // namespace medley
