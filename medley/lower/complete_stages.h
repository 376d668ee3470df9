#pragma once

// What each stage of a plan computes, and the plan's decisions about it, before any of it is
// lowered. What does not depend on a plan is found once for all plans of a search. Knows nothing of
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

// What is found out about a graph before anybody looks at a plan.
struct GraphAnalysis {
  Graph graph;
  Optimizer optimizer;
  std::shared_ptr<const Prepared> prepared;
  std::shared_ptr<const Factors> factors;  // of the prepared graph
  std::string coupling;                    // row_coupling() of the graph
  std::string graph_hash;
};
GraphAnalysis analyse(const Graph& graph, const Optimizer& optimizer);

// The decisions of a stage with the graph that they are about (composites expanded), for lowering
// and for explain.
struct Completed {
  std::shared_ptr<const Prepared> prepared;
  std::shared_ptr<const Factors> factors;
  Assignment assignment;
  std::vector<std::vector<OpId>> expanded{};  // composites, by turn: ids are those before the turn
};

// The positions in the forward sequence at which the later stages of a pipeline (`number` of the
// plan) begin: where the first op is that a stage names, or the next one that is computed in one
// stage only. `names`: stable_names(). Throws Error(kCaller) where a stage would be empty.
std::vector<int32_t> cuts_of(const Pipeline& pipeline,
                             size_t number,
                             const Positions& positions,
                             const std::vector<std::string>& names);

// Of several pipelines, what the one of the stage does of what is done once for all.
struct Duties {
  // Its gradients count for the norm, unless a stage before it has them; those of one pipeline
  // do. Of a parameter that owners divide, whoever updates a share counts that.
  bool counts = true;
  UpdatedParameters updated{};
  auto operator<=>(const Duties&) const = default;
};

// The stages of pipelines over one graph, each prepared once, however many plans have it. Threads
// may share one.
class PreparedStages {
 public:
  // Requires: `analysis` outlives this.
  explicit PreparedStages(const GraphAnalysis& analysis);

  const GraphAnalysis& analysis() const { return analysis_; }
  const std::vector<std::string>& names() const { return names_; }  // [op] stable_names()
  const Positions& positions() const { return positions_; }

  // What a stage of a partition by names() computes, with nothing decided. `recompute`: as in a
  // plan, with so many micro-batches in flight. `blocks`: as of a StageContext.
  Completed stage(const Partition& parts,
                  int stage,
                  const std::string& recompute = "none",
                  int in_flight = 1,
                  const Duties& duties = {},
                  const std::optional<std::vector<size_t>>& blocks = {});

 private:
  // Stages that agree in this compute the same.
  struct Key {
    int32_t begin = 0, end = 0;  // positions; kNone: to the last
    std::string recompute;
    int in_flight = 1;
    Duties duties;
    std::optional<std::vector<size_t>> blocks;  // as of a StageContext, as what follows
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

// Of a stage that is prepared: what the plan decides about stage `s` of a pipeline, and complete()
// where it says nothing.
Completed complete_stage(Completed prepared, const Plan& plan, size_t pipeline, size_t s);

// Returns a prepared stage with the decisions of the same stage of another size.
Completed complete_alike(Completed prepared, const Completed& decided);

// Returns the stages of all pipelines, one after the other, with nothing decided. `planned`: the
// same stages of another size, whose recomputed blocks these take over; empty: each finds its own.
std::vector<Completed> prepare_stages(const GraphAnalysis& analysis,
                                      const Plan& plan,
                                      const std::vector<Completed>& planned = {});

// Returns them with the decisions of the plan.
std::vector<Completed> complete_stages(std::vector<Completed> prepared, const Plan& plan);
std::vector<Completed> complete_stages(const GraphAnalysis& analysis, const Plan& plan);
std::vector<Completed> complete_stages(PreparedStages& stages, const Plan& plan);

}  // namespace medley
