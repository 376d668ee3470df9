#include "medley/cli/inputs.h"

#include <fmt/format.h>

#include "medley/graph/text.h"
#include "medley/graph/verify.h"
#include "medley/plan/verify_rows.h"
#include "medley/sharding/coupling.h"

namespace medley {

Error in_file(const std::string& path, const Error& error) {
  std::string_view what = error.what();
  for (const std::string& known : {path + ": ", std::string("plan: ")})
    if (what.starts_with(known)) what.remove_prefix(known.size());
  return {error.blame(), fmt::format("{}: {}", path, what)};
}

std::string read_input(Files& files, const std::string& path, std::string_view what) {
  if (!files.exists(path))
    throw Error(Blame::kCaller, fmt::format("{}: found no such file, expected {}", path, what));
  return files.read(path);
}

Graph read_graph(Files& files, const std::string& path) {
  Graph graph = parse_graph(read_input(files, path, "a graph"), path);
  try {
    verify(graph);
  } catch (const Error& error) {  // all errors in a file are the caller's
    throw Error(Blame::kCaller, fmt::format("{}: {}", path, error.what()));
  }
  return graph;
}

Cluster read_cluster(Files& files, const std::string& path, const std::string& catalogue) {
  return parse_cluster(read_input(files, path, "a cluster"), path, read_catalogue(catalogue));
}

Plan read_plan(Files& files, const std::string& path) {
  return plan_of(read_input(files, path, "a plan"), path);
}

Plan plan_of(const std::string& text, const std::string& path) {
  Plan plan = parse_plan(text, path);
  in_plan(path, [&] { verify_rows(plan); });
  return plan;
}

CostModel read_costs(Files& files, const std::string& profile, const Cluster& cluster) {
  if (profile.empty()) return CostModel(cluster);
  const Profile measured = parse_profile(read_input(files, profile, "a profile"), profile);
  try {
    verify(measured, cluster);
  } catch (const Error& error) {
    throw Error(Blame::kCaller, fmt::format("{}: {}", profile, error.what()));
  }
  return CostModel(cluster, measured);
}

void verify_plan(const Plan& plan,
                 const std::string& path,
                 const Graph& graph,
                 const Cluster& cluster) {
  in_plan(path, [&] { verify(plan, graph, cluster, row_coupling(graph, factorize(graph))); });
}

}  // namespace medley
