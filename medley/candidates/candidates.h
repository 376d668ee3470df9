#pragma once

// Selects the best of many candidates (candidate_places.h). All are timed; the fastest are made to
// fit, lowered and simulated. Knows nothing of the source of candidates.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "medley/candidates/candidate_trials.h"

namespace medley {

// Largest ratio between steps by the timer and by the simulator, unless the timer misses a dominant
// cost.
inline constexpr double kTimerOff = 1.1;

class CandidateSet {
 public:
  // Requires: all outlive this.
  CandidateSet(const Request& request,
               const std::vector<DevicePool>& pools,
               StageSynthesis& synthesis);
  CandidateSet(const CandidateSet&) = delete;

  const CandidatePlaces& places() const { return places_; }
  CandidateTrials& trials() { return trials_; }

  // Times candidates in both device mappings on all cores and stores them, except those that
  // exact_stages() rejects or whose ports take as long as the known step. Returns the shorter
  // times.
  std::vector<std::optional<Nanoseconds>> add(const std::vector<PlanCandidate>& candidates);
  // Like add(), then repeats with recompute "blocks" and "all" in stages without memory to overlap
  // transfers. Solves the candidates on all cores.
  void add_recomputing(std::vector<PlanCandidate> candidates);
  struct Timed {
    Nanoseconds time;  // step, by the timer
    PlanCandidate candidate;
  };
  // Returns all distinct candidates, fastest first; ties keep insertion order.
  const std::vector<Timed>& timed() const { return timed_; }

  // Makes the candidate fit (memory_ladder.h) and keeps it if it is the fastest so far. `trial`:
  // its trial, if one exists.
  void evaluate(PlanCandidate candidate, std::optional<CandidateTrial> trial = {});
  // Evaluates the `most` fastest timed candidates, and more until one fits. Skips candidates that
  // the timer puts above the best simulated step; equal times count as one. Then evaluates the best
  // in its other device mapping. Calls `starting` with 0, 1, ... before each evaluation.
  void choose(int most, const std::function<void(int)>& starting = {});
  // Evaluates the best again with multi-node stages decided over nodes and devices jointly, if they
  // are faster that way by themselves.
  void join_axes();
  // Returns the fastest evaluated plan, else the reason why the first one does not fit.
  Outcome best() const;
  // Returns the step of the best by the simulator. Requires: best() is a plan.
  Nanoseconds best_step() const { return *best_step_; }

 private:
  bool is_too_slow(Nanoseconds time) const;
  // Requires: its stages are solved. Thread-safe.
  std::optional<Nanoseconds> time_of(const PlanCandidate& candidate);
  void try_next(std::vector<std::optional<CandidateTrial>>& trials);

  const Request& request_;
  StageSynthesis& synthesis_;
  const CandidatePlaces places_;
  CandidateTrials trials_;
  std::vector<Timed> timed_;
  std::optional<Plan> best_;
  PlanCandidate best_candidate_;
  std::optional<Nanoseconds> best_step_;
  std::string misfit_;
  bool dropped_ = false;  // whether candidates were dropped as too slow
};

}  // namespace medley
