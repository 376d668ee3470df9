#pragma once

// What pipelines still sum with each other when a stage is done: the gradients of its layers. Of
// D pipelines each sends 2 (D - 1) / D of them and receives as many. Knows no plans.

#include <vector>

#include "medley/pipelines/pipeline.h"

namespace medley {

struct GradientSums {
  std::vector<Bytes> gradients;                              // [layer]; none: nothing is summed
  std::vector<int> per_node;                                 // [pool] devices of a node
  std::vector<std::vector<std::optional<LinkCurve>>> links;  // [from pool][to pool]

  // About how long, of so many pipelines: through the ports of its nodes, over the slowest link to
  // any pool, since nobody knows yet where the others lie.
  Nanoseconds about(const StageRange& stage, size_t pipelines) const;
  // No two pipelines or more take less: all comes into the nodes of the stage once, over the
  // fastest link. On a part of a node nothing is certain, the others may be on the rest of it.
  Nanoseconds at_least(const StageRange& stage) const;
};

// W of pipeline.h where stages update, and before that sum with others, for so long.
Nanoseconds after_last_backward(const PipelinePlan& plan, const std::vector<Nanoseconds>& sums);

}  // namespace medley
