#pragma once

// The commands on a table of measured layers (docs/formats/layers.md) in place of a graph.

#include <string>

#include "medley/cli/options.h"
#include "medley/cli/verbs.h"

namespace medley {

void plan_measured(const RequestOptions& options, const std::string& output, Session& session);
void compare_measured(const RequestOptions& options, Session& session);
void simulate_measured(const PlannedOptions& options, Session& session);
// `layers` and `cluster` add times and memory; both or neither may be "".
void explain_measured(const std::string& plan,
                      const std::string& layers,
                      const std::string& cluster,
                      Session& session);

}  // namespace medley
