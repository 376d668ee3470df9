#pragma once

// The best of many candidates for a plan (candidate_places.h): all are timed, and the fastest by
// the timer are made to fit, lowered and simulated. Knows nothing of where candidates come from.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "medley/candidates/candidate_trials.h"

namespace medley {

// The timer and the simulator say steps that differ by this factor at most, unless the timer knows
// little of what counts.
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

  // Times candidates in both placements, if they differ, on all cores, and keeps them, unless
  // wholes() has nothing or ports take as long as what is known. Returns the shorter times.
  std::vector<std::optional<Nanoseconds>> add(const std::vector<PlanCandidate>& candidates);
  // As add(), and again with blocks, then all computed again in stages that have no room for
  // as many micro-batches as hide transfers. Solves them on all cores.
  void add_recomputing(std::vector<PlanCandidate> candidates);
  struct Timed {
    Nanoseconds time;  // of a step, by the timer
    PlanCandidate candidate;
  };
  // All that differ, the fastest first; of those that take as long, in the order in which they
  // came.
  const std::vector<Timed>& timed() const { return timed_; }

  // Makes the candidate fit (memory_ladder.h) and keeps it if it is the fastest so far. `trial`: of
  // the candidate; nothing: not made yet.
  void evaluate(PlanCandidate candidate, std::optional<CandidateTrial> trial = {});
  // Considers the fastest timed, with as many times as told and more until one fits, but none that
  // the timer says is slower than the best by the simulator: all that take as long are one time,
  // for the simulator tells them apart. Then the best in its other placement, too. Says before each
  // time which it is, from 0 on.
  void choose(int most, const std::function<void(int)>& starting = {});
  // Considers the best once more, with those of its stages on several nodes decided over nodes and
  // devices at once that are faster so by themselves.
  void join_axes();
  // The fastest that was considered; else why the first one did not fit.
  Outcome best() const;
  // Returns the step of the best by the simulator. Requires: best() is a plan.
  Nanoseconds best_step() const { return *best_step_; }

 private:
  bool is_too_slow(Nanoseconds time) const;
  // Requires: its stages are solved. Threads may do so.
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
  bool dropped_ = false;  // some that cannot be faster than what is known
};

}  // namespace medley
