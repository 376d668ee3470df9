#pragma once

// The worth of a decision of a plan: the cost of the best plan without it. At the shares of the
// plan, in the pairwise problem of the search (spmd_problem.h):
//
//   loss(D) = min { cost(x) : x without D } - min { cost(x) }        (a min-marginal)
//
// All that is not forbidden is decided anew, as suits the other choice best. The plan that comes of
// it can be simulated like any other, which has the last word on what it costs.

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
  std::map<std::string, std::string> choices;  // of what was asked about, as texts of a plan
  Nanoseconds loss;                            // of the model
  bool proved = false;                         // that none loses less
};

struct Simulated {
  Nanoseconds step;
  bool fits = false;
};

class NextBest {
 public:
  // Whether plans of this kind can be asked about: one stage on several devices along one axis,
  // parts of shares.
  static bool knows(const Plan& plan);

  // Requires: knows(plan); `request` has costs and an analysis; both outlive this. Searches as
  // hap() does: of its weights for what may run beside ops, and as little of a price on memory as
  // lets the plan fit, those whose optimum is simulated to be fastest.
  NextBest(const Request& request, const Plan& plan);

  // Returns the best plan in which none of `names`, of ops and parameters, has a choice for which
  // `forbidden` holds. Nothing, if nothing is decided about them, or that is the only way.
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
