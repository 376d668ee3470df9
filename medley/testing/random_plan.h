#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/prepare/optimizer.h"

namespace medley {

// Returns a random legal plan: uneven rows and parts including zeros, random placements of
// parameters and their optimizer state, a random choice for every op, any recomputation. Any legal
// plan trains like one device. One mesh; several micro-batches only if rows are independent.
Plan random_plan(const Graph& graph,
                 const std::vector<std::string>& devices,
                 int64_t global_batch,
                 uint64_t seed);

// Returns a random pipeline: the devices in stages of random sizes, cut anywhere, with random or no
// division of the rows in each.
Plan random_pipeline(const Graph& graph,
                     const std::vector<std::string>& devices,
                     int64_t global_batch,
                     uint64_t seed);

// Returns two to four heterogeneous pipelines, fewer if devices or rows are few. In half of the
// plans, owners divide the update of some parameters, with zeros among their shares. Requires:
// independent rows, and no buffer that changes.
Plan random_pipelines(const Graph& graph,
                      const std::vector<std::string>& devices,
                      int64_t global_batch,
                      uint64_t seed);
// Returns pipelines for another optimizer than AdamW: undivided parameters have one owner, which
// alone counts them for the norm.
Plan random_pipelines_for(const Optimizer& optimizer,
                          const Graph& graph,
                          const std::vector<std::string>& devices,
                          int64_t global_batch,
                          uint64_t seed);

}  // namespace medley
