#pragma once

// Looks up `owners` of a plan: the pipelines that update a parameter, and their shares. Knows
// nothing of factors; lower/owned_shares.h defines shares of a parameter.

#include <cstdint>
#include <optional>
#include <string>

#include "medley/plan/match.h"
#include "medley/plan/plan.h"

namespace medley {

class Owners {
 public:
  // Requires: `plan` outlives this, and verify() accepts it.
  explicit Owners(const Plan& plan);

  // Division of a parameter's update among pipelines.
  struct Division {
    std::string pattern;  // as in the plan, for errors
    Part part;            // an entry for each pipeline
    // Returns whether `pipeline` updates; below two elements, only the one with the largest share.
    bool updates(size_t pipeline, int64_t elements) const;
    double share(size_t pipeline) const;  // share of all
  };
  // Returns nullopt if all pipelines with the parameter update it.
  std::optional<Division> division(const std::string& parameter) const;

 private:
  const Plan& plan_;
  const ChoiceFinder finder_;
};

}  // namespace medley
