#pragma once

#include <string>

#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/cluster/cluster.h"
#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/plan/plan.h"

namespace medley {

// Returns the error with the file in front: "<path>: ...".
Error in_file(const std::string& path, const Error& error);

// Runs the body. Errors about the plan name its file.
template <typename Body>
auto in_plan(const std::string& path, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw in_file(path, error);
  }
}

// Read and verify a file. Throw Error(kCaller) that names it, also for a missing file.
std::string read_input(Files& files, const std::string& path, std::string_view what);
Graph read_graph(Files& files, const std::string& path);
Cluster read_cluster(Files& files, const std::string& path, const std::string& catalogue);
Plan read_plan(Files& files, const std::string& path);
Plan plan_of(const std::string& text, const std::string& path);  // from text
// Returns analytic costs if `profile` is "".
CostModel read_costs(Files& files, const std::string& profile, const Cluster& cluster);

// Runs verify(plan, graph, cluster) including cross-sample dependence. Errors name the file.
void verify_plan(const Plan& plan,
                 const std::string& path,
                 const Graph& graph,
                 const Cluster& cluster);

}  // namespace medley
