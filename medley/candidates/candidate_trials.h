#pragma once

// Turns a candidate into a plan and its step time. Each stage is synthesised as a whole
// (stage_options.h), in-flight counts are set (schedule/h1f1b.h), the plan is lowered and
// simulated. Knows nothing of the source of candidates, nor whether programs fit.

#include <map>
#include <optional>
#include <vector>

#include "medley/candidates/candidate_places.h"
#include "medley/program/program.h"

namespace medley {

using ExactStages = std::vector<PipelinePlan>;  // [pipeline]

// Stores a candidate together with its plan, program and step time.
struct CandidateTrial {
  std::vector<PipelinePlan> pipelines;
  std::vector<PipelineTurns> turns;  // [pipeline]
  Plan plan;
  Program program;                  // first micro-batches, after lower()
  std::optional<Nanoseconds> step;  // after simulate(), with all other costs
};

// Memory of a stage beyond its option, measured with `in_flight` micro-batches.
struct ExtraBytes {
  Bytes bytes;
  int in_flight = 0;
  bool is_whole = false;  // no memory for deferred weight gradients
  double missing = 0;     // bytes
};
using Extra = std::vector<std::vector<ExtraBytes>>;  // [pipeline][stage]; may be empty

class CandidateTrials {
 public:
  // Requires: both outlive this.
  CandidateTrials(const CandidatePlaces& places, StageSynthesis& synthesis)
      : places_(places), request_(places.request), synthesis_(synthesis) {}

  const CandidatePlaces& places() const { return places_; }
  // Makes every later backward pass one call, without deferred weight gradients.
  void keep_backward_whole() { is_whole_ = true; }

  // Solves the stages of all candidates on all cores.
  void solve(const std::vector<PlanCandidate>& candidates);
  const std::optional<StageSolution>& solution(const PipelineCandidate& pipeline, size_t stage);
  // Returns the time per step of each layer as a stage of its own; 0 if unknown.
  std::vector<Nanoseconds> layer_times(const PipelineCandidate& pipeline, size_t stage);
  // Drops candidates with a stage slower than `step` by the sum over its layers. That sum is found
  // sooner than a whole stage of several layers.
  void drop_slower(std::vector<PlanCandidate>& candidates, Nanoseconds step);
  // Requires: all stages have solutions.
  size_t slowest_stage(const PipelineCandidate& pipeline);

  // Returns each pipeline with its stages synthesised as wholes; some may lack memory. Returns
  // nullopt if a stage cannot run.
  std::optional<ExactStages> stages(const PlanCandidate& candidate, const Extra& extra = {});
  // Like stages(), but also returns nullopt if a stage lacks memory for one micro-batch.
  // Thread-safe after all stages are solved.
  std::optional<ExactStages> exact_stages(const PlanCandidate& candidate, const Extra& extra = {});
  // Returns the step by the timer, with these stage times. `timings`: of turns_of().
  Nanoseconds time_of(const PlanCandidate& candidate,
                      const std::vector<PipelinePlan>& plans,
                      int timings = 100) const;

  // Returns nullopt if exact_stages() does.
  std::optional<CandidateTrial> trial(const PlanCandidate& candidate, const Extra& extra = {});
  // Lowers a plan. For equal pipelines with many micro-batches only the first few are lowered: the
  // steady state repeats. Threads may call lower() and simulate(), each for its own trial.
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
  bool is_whole_ = false;  // backward passes
};

}  // namespace medley
