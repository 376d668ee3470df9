#pragma once

// Evaluates a decision of a plan by the best plan without it. Uses the pairwise problem of the
// search (spmd_problem.h), at the plan's shares:
//
//   loss(D) = min { cost(x) : x without D } - min { cost(x) }        (a min-marginal)
//
// All other decisions are optimised again for the alternative. Its plan can be simulated like any
// other; the simulated step is the authoritative cost.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "medley/synthesis/request.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {

struct Alternative {
  Plan plan;
  std::map<std::string, std::string> choices;  // [queried name] text in a plan
  Nanoseconds loss;                            // in the model
  bool proved = false;                         // optimal: no alternative loses less
};

struct Simulated {
  Nanoseconds step;
  bool fits = false;
};

class NextBest {
 public:
  // Returns whether plans of this type are supported: one stage on several devices along one axis,
  // with parts that are shares.
  static bool knows(const Plan& plan);

  // Requires: knows(plan); `request` has costs and an analysis; both outlive this. Searches as
  // hap() does: of its weights for overlapped work, at the least memory price at which the plan
  // fits, it takes those with the fastest simulated optimum.
  NextBest(const Request& request, const Plan& plan);

  // Returns the best plan in which no choice of `names` (ops and parameters) is forbidden. Returns
  // nullopt if they have no decision, or only forbidden choices.
  std::optional<Alternative> without(
      const std::vector<std::string>& names,
      const std::function<bool(const std::string& choice)>& forbidden) const;

  Simulated simulated(const Plan& of) const;

  const SpmdProblem& problem() const { return *problem_; }
  const PbqpSolution& optimum() const { return optimum_; }

 private:
  Plan with(const std::vector<int32_t>& choices) const;
  bool take_fastest(const std::vector<double>& byte_prices);

  const Request& request_;
  const Plan& plan_;
  std::unique_ptr<OpCatalogue> catalogue_;
  std::unique_ptr<SpmdProblem> problem_;
  PbqpSolution optimum_;
};

}  // namespace medley
