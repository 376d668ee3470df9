#pragma once

// Times of gradient sums between pipelines after a stage is done. Each of D pipelines sends 2 (D -
// 1) / D of its layers' gradients and receives as many. Knows no plans.

#include <vector>

#include "medley/chains/pipeline.h"

namespace medley {

struct GradientSums {
  std::vector<Bytes> gradients;                              // [layer]; empty: no sums
  std::vector<int> devices;                                  // [pool]
  std::vector<int> per_node;                                 // [pool] devices of a node
  std::vector<std::vector<std::optional<LinkCurve>>> links;  // [from pool][to pool]

  // Returns the estimated time for `pipelines` pipelines with unknown mapping: through the ports of
  // its nodes, over the fastest link to devices that others may use.
  Nanoseconds about(const StageRange& stage, size_t pipelines) const;
  // Returns a lower bound for two or more pipelines: all gradients enter the stage's nodes once,
  // over that link. It is 0 on a part of a node, since the others may use the rest of it.
  Nanoseconds at_least(const StageRange& stage) const;
  // Returns [pipeline][stage] times for known mappings: each stage sums with stages of other
  // pipelines that share layers, over their pools' link. Returns nullopt if a link is missing.
  std::optional<std::vector<std::vector<Nanoseconds>>> between(
      const std::vector<const PipelinePlan*>& pipelines) const;

 private:
  std::optional<Nanoseconds> fastest(const StageRange& stage, Bytes bytes) const;
};

// Returns W of pipeline.h for stages that sum for `sums` before their update.
Nanoseconds after_last_backward(const PipelinePlan& plan, const std::vector<Nanoseconds>& sums);

}  // namespace medley
