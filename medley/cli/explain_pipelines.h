#pragma once

// Compares the pipelines of a plan: their devices, work and idle time, and the gradient syncs
// between them. Knows nothing of what is sharded inside a stage.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/lower/complete_stages.h"
#include "medley/plan/plan.h"
#include "medley/program/program.h"
#include "medley/sim/simulate.h"

namespace medley {

// Layers [begin, end) as `medley explain --layers` numbers them.
struct LayerRange {
  int begin = 0, end = 0;
};
// Returns the layers of each stage, pipeline after pipeline. A layer with a cut is in both stages.
std::vector<LayerRange> layer_ranges(const Graph& graph, const Plan& plan);
std::string to_string(const LayerRange& range);  // "0-5"

// Returns a row for each pipeline: samples, micro-batches, stages; with `costs` devices by type.
nlohmann::ordered_json pipelines_json(const Plan& plan, const CostModel* costs);
// Adds simulated values to those rows. Requires: a simulation of this program.
void add_measures(nlohmann::ordered_json& pipelines,
                  const Program& program,
                  const CostModel& costs,
                  const Simulation& simulation);
std::string pipelines_text(const nlohmann::ordered_json& pipelines);

// Returns a row for all gradient syncs among the same stages. Requires: the simulation has some.
nlohmann::ordered_json shared_json(const Program& program,
                                   const std::vector<LayerRange>& layers,
                                   const CostModel& costs,
                                   const Simulation& simulation);
std::string shared_text(const nlohmann::ordered_json& shared);

}  // namespace medley
