#pragma once

// The commands on a table of measured layers (docs/formats/layers.md) instead of a graph.

#include <string>
#include <utility>
#include <vector>

#include "medley/cli/options.h"
#include "medley/cli/verbs.h"
#include "medley/measured_layers/layer_plan.h"

namespace medley {

void plan_measured(const RequestOptions& options, const std::string& output, Session& session);
void compare_measured(const RequestOptions& options, Session& session);
void simulate_measured(const PlannedOptions& options, Session& session);
void memory_measured(const PlannedOptions& options, Session& session);
// Throws Error(kCaller) if the table has no times for the cluster, or if the plan fits neither or
// lacks memory. Returns lines about devices that no plan can use.
std::string check_measured(const std::string& path,
                           const LayerTable& table,
                           const Cluster& cluster,
                           const std::vector<std::pair<std::string, LayerPlan>>& plans);
// Prints a plan. `layers` and `cluster` add times and memory. Requires: both or neither are "".
void explain_measured(const std::string& plan,
                      const std::string& layers,
                      const std::string& cluster,
                      Session& session);

}  // namespace medley
