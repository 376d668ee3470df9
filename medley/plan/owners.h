#pragma once

// Which of several pipelines update a parameter, and how much of it: `owners` of a plan, looked up.
// Knows nothing of factors: what a share of a parameter is, lower/owned_shares.h says.

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

  // What the pipelines have of a parameter.
  struct Division {
    std::string pattern;  // of the plan, for errors
    Part part;            // an entry for each pipeline
    // Of less than two elements nothing can be divided: who has the largest share has it.
    bool updates(size_t pipeline, int64_t elements) const;
    double share(size_t pipeline) const;  // of all
  };
  // Returns nothing where all holders update it.
  std::optional<Division> division(const std::string& parameter) const;

 private:
  const Plan& plan_;
  const ChoiceFinder finder_;
};

}  // namespace medley
