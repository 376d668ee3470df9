#pragma once

// The commands on a table of measured layers (docs/formats/layers.md) in place of a graph.

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
// Throws Error(kCaller) if the table has no times for the cluster, or a plan, by its path, is none
// for both or lacks memory. Returns lines about the devices that no plan can use.
std::string check_measured(const std::string& path,
                           const LayerTable& table,
                           const Cluster& cluster,
                           const std::vector<std::pair<std::string, LayerPlan>>& plans);
// `layers` and `cluster` add times and memory; both or neither may be "".
void explain_measured(const std::string& plan,
                      const std::string& layers,
                      const std::string& cluster,
                      Session& session);

}  // namespace medley
