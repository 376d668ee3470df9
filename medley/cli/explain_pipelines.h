#pragma once

// Pipelines of a plan beside each other: who is with whom, what each does and waits for, and which
// of them sum the gradients of which layers together. Knows nothing of what is sharded inside a
// stage.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/lower/complete_stages.h"
#include "medley/plan/plan.h"
#include "medley/program/program.h"
#include "medley/sim/simulate.h"

namespace medley {

// Layers as `medley explain --layers` counts them: from `begin` on, before `end`.
struct LayerRange {
  int begin = 0, end = 0;
};
// [stage] pipeline after pipeline. A cut inside of a layer leaves it to both of its stages.
std::vector<LayerRange> layer_ranges(const Graph& graph, const Plan& plan);
std::string to_string(const LayerRange& range);  // "0-5"

// A row for each pipeline: its rows, micro-batches and stages, and devices by kind if there are
// costs of a cluster.
nlohmann::ordered_json pipelines_json(const Plan& plan, const CostModel* costs);
// Adds to those rows what the simulation says. Requires: it is of this program.
void add_measures(nlohmann::ordered_json& pipelines,
                  const Program& program,
                  const CostModel& costs,
                  const Simulation& simulation);
std::string pipelines_text(const nlohmann::ordered_json& pipelines);
// What decides who is with whom: what goes over which network inside of pipelines and between them,
// and whether they are done at one time. Requires: rows with measures.
std::string reasons_text(const nlohmann::ordered_json& pipelines,
                         const nlohmann::ordered_json& shared);

// A row for all relays among the same stages. Requires: the simulation has relays.
nlohmann::ordered_json shared_json(const Program& program,
                                   const std::vector<LayerRange>& layers,
                                   const CostModel& costs,
                                   const Simulation& simulation);
std::string shared_text(const nlohmann::ordered_json& shared);

}  // namespace medley
