#pragma once

// From a candidate to the plan and its step: each stage is synthesised as a whole
// (stage_options.h), micro-batches in flight are counted (schedule/h1f1b.h), the plan is lowered
// and simulated. Knows nothing of where candidates come from, nor whether programs fit.

#include <map>
#include <optional>
#include <vector>

#include "medley/candidates/candidate_places.h"
#include "medley/program/program.h"

namespace medley {

using WholeStages = std::vector<PipelinePlan>;  // of each pipeline

// A candidate as it would run.
struct CandidateTrial {
  std::vector<PipelinePlan> pipelines;
  std::vector<PipelineTurns> turns;  // [pipeline]
  Plan plan;
  Program program;                  // of the first micro-batches, once it is lowered
  std::optional<Nanoseconds> step;  // once it is simulated, with what it costs besides
};

// Memory of a stage beyond that of its option, found with so many micro-batches in flight.
struct ExtraBytes {
  Bytes bytes;
  int in_flight = 0;
  bool is_whole = false;  // no room for gradients of weights that come later
  double missing = 0;     // bytes
};
using Extra = std::vector<std::vector<ExtraBytes>>;  // [pipeline][stage]; empty: nothing

class CandidateTrials {
 public:
  // Requires: both outlive this.
  CandidateTrials(const CandidatePlaces& places, StageSynthesis& synthesis)
      : places_(places), request_(places.request), synthesis_(synthesis) {}

  const CandidatePlaces& places() const { return places_; }
  // From now on backward passes are one call: no gradients of weights come later.
  void keep_backward_whole() { is_whole_ = true; }

  // Solves the stages of all on all cores.
  void solve(const std::vector<PlanCandidate>& candidates);
  const std::optional<StageSolution>& solution(const PipelineCandidate& pipeline, size_t stage);
  // Returns what each layer takes in a step as a stage like that by itself; 0: not known.
  std::vector<Nanoseconds> layer_times(const PipelineCandidate& pipeline, size_t stage);
  // Drops those a stage of which takes longer by the sum over its layers, which is found sooner
  // than the stage as a whole where there are several.
  void drop_slower(std::vector<PlanCandidate>& candidates, Nanoseconds step);
  // Requires: all stages have solutions.
  size_t slowest_stage(const PipelineCandidate& pipeline);

  // Returns each pipeline as it is when its stages are synthesised as wholes. Some may have no
  // room. Nothing if a stage cannot be run like this.
  std::optional<WholeStages> stages(const PlanCandidate& candidate, const Extra& extra = {});
  // The same; nothing, too, if a stage has no room for a single micro-batch. Threads may call it
  // once all stages are solved.
  std::optional<WholeStages> wholes(const PlanCandidate& candidate, const Extra& extra = {});
  // Returns a step by the timer, with stages that take so long. `timings`: of turns_of().
  Nanoseconds time_of(const PlanCandidate& candidate,
                      const std::vector<PipelinePlan>& plans,
                      int timings = 100) const;

  // Nothing where wholes() is.
  std::optional<CandidateTrial> trial(const PlanCandidate& candidate, const Extra& extra = {});
  // Lowers a plan; of many micro-batches of equal pipelines only a few: once a pipeline is full,
  // one is like the next. Threads may call this and simulate(), each for its own trial.
  void lower(CandidateTrial& trial) const;
  void simulate(CandidateTrial& trial) const;

 private:
  std::vector<StageQuery> queries(const std::vector<PlanCandidate>& candidates) const;
  Pipeline to_pipeline(const PipelineCandidate& candidate,
                       const std::vector<std::vector<int>>& devices,
                       const PipelineTurns& turns);

  const CandidatePlaces& places_;
  const Request& request_;
  StageSynthesis& synthesis_;
  std::map<StageQuery, bool> defaults_suffice_;
  bool is_whole_ = false;  // of backward passes
};

}  // namespace medley
