#pragma once

// The best decisions of a division, what plans of them take, and what of that a search will ask for
// first, found beside other things. Knows nothing of what else was found.

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
  Nanoseconds modelled{};     // what the search took for the step
  bool of_any_count = false;  // nor do more micro-batches make it fit
  // No decisions of its division take less than what is to be beaten: this is not priced.
  bool beaten = false;
  bool left_out = false;  // it cannot be lowered
  bool fits() const { return missing_bytes == 0 && !left_out; }

  // Of those that do not fit, the nearest to it, which is the one to complain about.
  bool better_than(const SpmdCandidate& other) const {
    if (missing_bytes != other.missing_bytes) return missing_bytes < other.missing_bytes;
    return step < other.step;
  }
};

// By meaning.
using SpmdPriced = std::vector<std::pair<Plan, SpmdCandidate>>;
// Equal for plans that differ in what they do not use.
Plan meaning_of(Plan plan);
// Null: it is none of them.
const SpmdCandidate* find_priced(const SpmdPriced& priced, const Plan& meaning);
SpmdCandidate* find_priced(SpmdPriced& priced, const Plan& meaning);

struct SpmdDecided {
  SpmdOptions options;
  std::optional<Plan> plan;  // nothing: none are allowed, or they cannot be priced
  Nanoseconds bound, modelled;
};

// Of a division.
struct SpmdAhead {
  std::unique_ptr<SpmdDivision> division;  // null: nobody has looked
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
  // Without the plan.
  SpmdCandidate price(const Plan& plan) const;
  // With each share of what is overlapped, and again with blocks recomputed where that lacks
  // memory, on several cores: unless decisions take longer than what is to be beaten. `known` are
  // not priced again.
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
