#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/prepare/optimizer.h"

namespace medley {

// Returns a legal plan drawn at random: uneven rows and parts with zeros among them, a random state
// for every parameter and its optimizer state, a random choice of its rule for every op, anything
// computed again. For tests: any legal plan trains like one device. One mesh; several micro-batches
// only where rows are independent.
Plan random_plan(const Graph& graph,
                 const std::vector<std::string>& devices,
                 int64_t global_batch,
                 uint64_t seed);

// The same as a pipeline: the devices in stages of random sizes, cut anywhere, with a random
// division of the rows in each, or none.
Plan random_pipeline(const Graph& graph,
                     const std::vector<std::string>& devices,
                     int64_t global_batch,
                     uint64_t seed);

// The same as two to four pipelines that differ in everything, fewer where there are fewer devices
// or rows; in half of the plans, owners divide the update of some parameters, with zeros among
// their shares. Requires: independent rows, and no buffer that changes.
Plan random_pipelines(const Graph& graph,
                      const std::vector<std::string>& devices,
                      int64_t global_batch,
                      uint64_t seed);
// The same for another optimizer than AdamW: what it does not divide has one owner, which alone
// counts it for the norm.
Plan random_pipelines_for(const Optimizer& optimizer,
                          const Graph& graph,
                          const std::vector<std::string>& devices,
                          int64_t global_batch,
                          uint64_t seed);

}  // namespace medley
