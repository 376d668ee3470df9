#pragma once

// What pipelines still sum with each other when a stage is done: the gradients of its layers. Of
// D pipelines each sends 2 (D - 1) / D of them and receives as many. Knows no plans.

#include <vector>

#include "medley/chains/pipeline.h"

namespace medley {

struct GradientSums {
  std::vector<Bytes> gradients;                              // [layer]; none: nothing is summed
  std::vector<int> devices;                                  // [pool]
  std::vector<int> per_node;                                 // [pool] devices of a node
  std::vector<std::vector<std::optional<LinkCurve>>> links;  // [from pool][to pool]

  // About how long, of so many pipelines, while nobody knows where the others lie: through the
  // ports of its nodes, over the fastest link to devices that others may have.
  Nanoseconds about(const StageRange& stage, size_t pipelines) const;
  // No two pipelines or more take less: all comes into the nodes of the stage once, over that link.
  // On a part of a node nothing is certain, the others may be on the rest of it.
  Nanoseconds at_least(const StageRange& stage) const;
  // [pipeline][stage] where they are known: with each stage of another pipeline that has the same
  // layers over the link between their pools. Nothing if there is none.
  std::optional<std::vector<std::vector<Nanoseconds>>> between(
      const std::vector<const PipelinePlan*>& pipelines) const;

 private:
  std::optional<Nanoseconds> fastest(const StageRange& stage, Bytes bytes) const;
};

// W of pipeline.h where stages update, and before that sum with others, for so long.
Nanoseconds after_last_backward(const PipelinePlan& plan, const std::vector<Nanoseconds>& sums);

}  // namespace medley
