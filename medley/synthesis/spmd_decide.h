#pragma once

// Solves and prices the decisions of one division, and precomputes in parallel the ones that a
// search needs first. Knows nothing of other results.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "medley/program/program.h"
#include "medley/synthesis/spmd_problem.h"
#include "medley/synthesis/spmd_starts.h"

namespace medley {

struct SpmdCandidate {
  Plan plan{};
  Program program{};
  Nanoseconds step{};
  double missing_bytes = 0;   // on all devices
  Nanoseconds modelled{};     // the search model's step
  bool of_any_count = false;  // more micro-batches do not help
  // Whether no decisions of its division beat the target; the candidate is then not priced.
  bool pruned = false;
  bool left_out = false;  // it cannot be lowered
  bool fits() const { return missing_bytes == 0 && !left_out; }

  // Orders by missing bytes, then by step, so the best misfit is the one to report.
  bool better_than(const SpmdCandidate& other) const {
    if (missing_bytes != other.missing_bytes) return missing_bytes < other.missing_bytes;
    return step < other.step;
  }
};

// Priced candidates, keyed by meaning_of().
using SpmdPriced = std::vector<std::pair<Plan, SpmdCandidate>>;
// Returns the plan without unused parts, so equivalent plans compare equal.
Plan meaning_of(Plan plan);
// Return null if the plan is not priced.
const SpmdCandidate* find_priced(const SpmdPriced& priced, const Plan& meaning);
SpmdCandidate* find_priced(SpmdPriced& priced, const Plan& meaning);

struct SpmdDecided {
  SpmdOptions options;
  std::optional<Plan> plan;  // nullopt: none allowed, or not priceable
  Nanoseconds bound, modelled;
};

// Precomputed results of a division.
struct SpmdAhead {
  std::unique_ptr<SpmdDivision> division;  // null: not computed
  int64_t microbatches = 0;
  std::vector<SpmdDecided> decided;
  SpmdPriced priced;
};

class SpmdDecider {
 public:
  // Requires: both outlive this.
  SpmdDecider(const Request& request, const SpmdStarts& starts)
      : request_(request), starts_(starts) {}

  SpmdDecided decide(SpmdDivision& division, const SpmdOptions& options) const;
  // Returns a candidate with an empty plan.
  SpmdCandidate price(const Plan& plan) const;
  // Decides with each share of overlapped time, and with blocks recomputed if memory is short, on
  // several cores. Stops if decisions do not beat `to_beat`. Skips pricing of `known`.
  SpmdAhead look_ahead(const SpmdStart& start,
                       int64_t microbatches,
                       std::optional<Nanoseconds> to_beat,
                       const SpmdPriced& known) const;

 private:
  SpmdDecided decide_or_throw(SpmdDivision& division, const SpmdOptions& options) const;

  const Request& request_;
  const SpmdStarts& starts_;
};

}  // namespace medley
