#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "medley/base/error.h"
#include "medley/checkpoint/folder.h"
#include "medley/checkpoint/read.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/lower/lower.h"
#include "medley/synthesis/fit.h"

namespace medley {
namespace {

// The files read so far. The last of each type counts for checks across files.
struct Read {
  std::optional<Graph> graph;
  std::optional<Cluster> cluster;
  std::vector<std::pair<std::string, Plan>> plans;
  std::optional<std::pair<std::string, LayerTable>> table;
  std::vector<std::pair<std::string, LayerPlan>> layer_plans;
};

// Reads every byte of a checkpoint, or of all complete ones in a folder.
std::string read_checkpoints(Files& files, const std::string& path) {
  std::vector<FoundCheckpoint> found = find_checkpoints(files, path);
  if (found.empty()) found.push_back({path, 0, true});
  int64_t bytes = 0, step = -1, count = 0;
  for (const FoundCheckpoint& each : found) {
    if (!each.is_complete) continue;
    const Manifest manifest = open_checkpoint(files, each.path);
    bytes += check_checkpoint(files, each.path, manifest);
    step = std::max(step, manifest.state.step);
    ++count;
  }
  if (count == 0)
    throw Error(Blame::kCaller,
                fmt::format("{}: not complete (no COMMIT), expected a checkpoint", found[0].path));
  return count == 1
             ? fmt::format("checkpoint after {} steps, {} bytes", step, bytes)
             : fmt::format("{} checkpoints, the last after {} steps, {} bytes", count, step, bytes);
}

// Reads one file by the end of its name, or a folder, and describes it.
std::string read_one(const std::string& path, Session& session, Read& read) {
  if (session.files.kind(path) == FileKind::kDirectory)
    return read_checkpoints(session.files, path);
  if (path.ends_with(".graph")) {
    read.graph = read_graph(session.files, path);
    return fmt::format("graph \"{}\", {} ops", read.graph->name, read.graph->ops.size());
  }
  if (path.ends_with(".yaml") || path.ends_with(".yml")) {
    read.cluster = read_cluster(session.files, path, session.catalogue);
    return fmt::format("cluster of {} devices", read.cluster->devices.size());
  }
  if (path.ends_with(".json")) {
    const std::string text = read_input(session.files, path, "a plan");
    if (is_layer_table(text)) {
      read.table = {path, parse_layer_table(text, path)};
      return fmt::format("table of {} layers", read.table->second.layers.size());
    }
    if (is_layer_plan(text)) {
      read.layer_plans.emplace_back(path, parse_layer_plan(text, path));
      return fmt::format("plan over layers for {} rows",
                         read.layer_plans.back().second.global_batch);
    }
    read.plans.emplace_back(path, plan_of(text, path));
    return fmt::format("plan for {} rows", read.plans.back().second.global_batch);
  }
  throw Error(Blame::kCaller,
              fmt::format("{}: found a file of unknown kind, expected a name that ends in .graph, "
                          ".yaml or .json",
                          path));
}

// Checks everything possible without running: names, rows, choices, memory.
void check_fit(const std::string& path, const Plan& plan, const Read& read) {
  verify_plan(plan, path, *read.graph, *read.cluster);
  const GraphAnalysis analysis = analyse(*read.graph, {});
  const Request request{.graph = *read.graph,
                        .cluster = *read.cluster,
                        .strategy = "",
                        .global_batch = plan.global_batch,
                        .devices = {},
                        .optimizer = {},
                        .cache = {.analysis = &analysis}};
  if (in_plan(path, [&] { return find_misfit(plan, request); }))
    throw Error(Blame::kCaller,
                fmt::format("{}: {}", path, to_string(explain_misfit(plan, request))));
}

// Returns the ops without a rule, which every device computes whole; "" if there are none.
std::string without_rules(const Graph& graph) {
  std::set<std::string> names;
  for (const Op& op : graph.ops)
    if (!find_rule(op.name)) names.insert(op.name);
  if (names.empty()) return "";
  return fmt::format(
      "Ops without a rule, which each device computes whole: {}. In a graph by hand, check their "
      "spelling.\n",
      fmt::join(names, ", "));
}

// Returns the sentence on checks skipped for lack of files; "" if there are none.
std::string not_checked(const Read& read) {
  if (read.plans.empty() || (read.graph && read.cluster)) return "";
  const char* missing = read.graph     ? "a cluster"
                        : read.cluster ? "a graph"
                                       : "a graph and a cluster";
  return fmt::format("Not checked: whether a plan fits {}.\n", missing);
}

// Returns the command that uses these files, or that checks a plan with all that it is for.
std::string next_of_check(const std::vector<std::string>& paths, const Read& read) {
  const auto of = [&](bool found, const char* end, const char* name) {
    return found ? *std::ranges::find_if(paths, [&](auto& p) { return p.ends_with(end); }) : name;
  };
  const std::string graph = of(read.graph.has_value(), ".graph", "g.graph");
  const std::string cluster = of(read.cluster.has_value(), "ml", "cluster.yaml");
  const std::string plan = read.plans.empty() ? "" : read.plans.back().first;
  if (plan.empty() && !read.graph) return "";
  if (plan.empty())
    return next_text(
        {{"medley", "plan", graph, cluster, "--global-batch", "64", "-o", "plan.json"}});
  return next_text({read.graph && read.cluster
                        ? std::vector<std::string>{"medley", "launch", plan, "train.py"}
                        : std::vector<std::string>{"medley", "check", graph, cluster, plan}});
}

void run_check(const std::vector<std::string>& paths, Session& session) {
  Read read;
  Table table("file|what it is");
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const std::string& path : paths) {
    const std::string what = read_one(path, session, read);
    table.add({path, what});
    json.push_back({{"file", path}, {"what", what}});
  }
  if (read.graph && read.cluster)
    for (const auto& [path, plan] : read.plans) check_fit(path, plan, read);
  else if (read.graph)
    for (const auto& [path, plan] : read.plans)
      in_plan(path, [&] { verify_graph_hash(plan, *read.graph); });
  std::string left_out = (read.graph ? without_rules(*read.graph) : "") + not_checked(read);
  if (read.table && read.cluster)
    left_out +=
        check_measured(read.table->first, read.table->second, *read.cluster, read.layer_plans);
  session.out << (session.json ? json.dump(2) + "\n"
                               : table.text() + wrapped(left_out) + next_of_check(paths, read));
}

}  // namespace

std::function<void()> prepare_check(Arguments& arguments, Session& session) {
  auto paths = std::make_shared<std::vector<std::string>>();
  arguments.texts(
      "files",
      *paths,
      "Graphs (.graph), clusters (.yaml), layer tables and plans (.json); with one of "
      "each, also whether they fit together. Folders of checkpoints: every byte of them",
      {.required = true});
  return [paths, &session] { run_check(*paths, session); };
}

}  // namespace medley
