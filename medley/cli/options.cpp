#include "medley/cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "medley/base/error.h"
#include "medley/cluster/quantity.h"
#include "medley/plan/plan.h"
#include "medley/synthesis/fit.h"

namespace medley {
namespace {

void add_graph_and_cluster(Arguments& arguments, std::string& graph, std::string& cluster) {
  arguments.text("graph", graph, "The captured model (g.graph)", {.required = true});
  arguments.text("cluster", cluster, "The devices (cluster.yaml)", {.required = true});
}

void refuse_both(const std::string& extra, const std::string& layers) {
  if (!extra.empty())
    throw Error(Blame::kCaller, "found a graph and --layers " + layers + ", expected one of them");
}

}  // namespace

std::optional<double> read_duration(const std::string& option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::optional<double> seconds = parse_quantity(text, Dimension::kDuration);
  if (!seconds || !(*seconds > 0))
    throw Error(Blame::kCaller,
                option + ": found \"" + text +
                    "\", expected a duration such as \"10 s\", \"90 min\" or \"36 h\"");
  return seconds;
}

void add_layers_option(Arguments& arguments,
                       std::string& layers,
                       const std::vector<std::string>& places) {
  arguments.text("--layers",
                 layers,
                 "Measured layers (table.json) in place of the graph",
                 {.in_place_of = places});
}

bool without_graph(RequestOptions& options) {
  if (options.layers.empty()) return false;
  refuse_both(options.cluster, options.layers);
  options.cluster = std::exchange(options.graph, "");
  return true;
}

bool without_graph(PlannedOptions& options) {
  if (options.layers.empty()) return false;
  refuse_both(options.plan, options.layers);
  if (options.cluster.empty())
    throw Error(Blame::kCaller, "found --layers " + options.layers + ", expected a plan beside it");
  options.plan = std::exchange(options.cluster, std::exchange(options.graph, ""));
  return true;
}

void add_request_options(Arguments& arguments, RequestOptions& options) {
  add_graph_and_cluster(arguments, options.graph, options.cluster);
  arguments.number("--global-batch",
                   options.global_batch,
                   "Rows of a step over all devices",
                   {.required = true});
  add_layers_option(arguments, options.layers, {"cluster"});
  add_profile_option(arguments, options.profile, {.excludes = {"--layers"}});
  arguments.number("--microbatches",
                   options.microbatches,
                   "How many; as few as fit into memory if not given",
                   {.least = 1, .most = kMostMicrobatches});
  arguments.texts("--devices",
                  options.devices,
                  "Use these only: fast/0/0,slow/0/1",
                  {.commas = true, .excludes = {"--layers"}});
}

std::vector<std::string> plan_command(const RequestOptions& options, const std::string& strategy) {
  std::vector<std::string> words{"medley", "plan", options.graph, options.cluster};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty() && value != "0") words.insert(words.end(), {name, value});
  };
  if (!options.layers.empty())
    words = {"medley", "plan", "--layers", options.layers, options.cluster};
  add("--global-batch", std::to_string(options.global_batch));
  add("--microbatches", std::to_string(options.microbatches));
  add("--profile", options.profile);
  add("--devices", fmt::format("{}", fmt::join(options.devices, ",")));
  add("--strategy", strategy);
  add("-o", "plan.json");
  return words;
}

std::vector<std::string> report_command(const PlannedOptions& options, const std::string& profile) {
  std::vector<std::string> words{"medley", "report", options.plan};
  if (options.layers.empty())
    words.insert(words.end(), {"--graph", options.graph});
  else
    words.insert(words.end(), {"--layers", options.layers});
  words.insert(words.end(), {"--cluster", options.cluster});
  if (!profile.empty()) words.insert(words.end(), {"--profile", profile});
  words.insert(words.end(), {"-o", "report.html"});
  return words;
}

void add_planned_options(Arguments& arguments, PlannedOptions& options) {
  add_graph_and_cluster(arguments, options.graph, options.cluster);
  arguments.text("plan", options.plan, "The plan (plan.json)", {.required = true});
}

void add_profile_option(Arguments& arguments, std::string& profile, const ArgumentRules& rules) {
  arguments.text("--profile", profile, "Measured times (profile.json)", rules);
}

}  // namespace medley
