#pragma once

// Arguments and options that several commands share.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "medley/cli/arguments.h"

namespace medley {

struct RequestOptions {
  std::string graph, cluster, profile;
  std::string layers;  // a layer table instead of the graph, or ""
  int64_t global_batch = 0, microbatches = 0;
  std::vector<std::string> devices;
};
void add_request_options(Arguments& arguments, RequestOptions& options);

// Returns the words of the command that plans with these options and a strategy.
std::vector<std::string> plan_command(const RequestOptions& options, const std::string& strategy);

// A graph, a cluster, and a plan for both.
struct PlannedOptions {
  std::string graph, cluster, plan;
  std::string layers;  // a layer table instead of the graph, or ""
};
void add_planned_options(Arguments& arguments, PlannedOptions& options);

// Returns the words of the command that writes a report on a plan.
std::vector<std::string> report_command(const PlannedOptions& options, const std::string& profile);

// Adds `--layers`, which replaces the first positional argument. `places`: arguments that are then
// not required. After parsing, without_graph() moves the others to their places. Returns true if
// there is a table.
void add_layers_option(Arguments& arguments,
                       std::string& layers,
                       const std::vector<std::string>& places);
bool without_graph(RequestOptions& options);
bool without_graph(PlannedOptions& options);

// Returns "36h" in seconds, or nothing if it is not given.
std::optional<double> read_duration(const std::string& option, const std::string& text);

void add_profile_option(Arguments& arguments,
                        std::string& profile,
                        const ArgumentRules& rules = {});

}  // namespace medley
