#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "medley/base/at.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/progress.h"
#include "medley/cli/stage_names.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/lower/lower.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using nlohmann::ordered_json;

struct CompareArguments {
  RequestOptions request;
  std::vector<std::string> strategies;
};

// The simulation of one strategy's plan, or why there is none.
struct StrategyRow {
  std::string strategy;
  std::optional<Infeasible> infeasible{};
  Nanoseconds step, slowest_computes;
  double utilisation = 0;                                     // mean over all devices
  int64_t traffic = 0;                                        // bytes over all links
  std::map<std::string, std::pair<int64_t, int64_t>> memory;  // by type: used, available
  size_t microbatches = 0;
  // [pipeline] its stages, and its devices by type.
  std::vector<std::pair<size_t, std::map<std::string, size_t>>> pipelines;
  size_t stages = 0, recomputing = 0;      // stages that recompute blocks or everything
  std::map<std::string, size_t> not_used;  // devices by type
};

StrategyRow evaluate(const std::string& strategy, const Outcome& outcome, const Request& request) {
  StrategyRow row;
  row.strategy = strategy;
  if (const auto* no = std::get_if<Infeasible>(&outcome)) {
    row.infeasible = *no;
    return row;
  }
  const Plan& found = std::get<Plan>(outcome);
  const Program program = lower(*request.cache.analysis, found, request.cluster);
  const Simulation simulated = simulate(program, *request.costs, {.trace = false, .memory = true});
  row.step = simulated.step;
  row.pipelines.resize(found.pipelines.size());
  for (const LoweredStage& stage : program.stages) {
    auto& [stages, kinds] = row.pipelines[at(stage.pipeline)];
    ++stages;
    for (int device : stage.devices) ++kinds[request.cluster.kind(device).name];
  }
  for (int device : devices_of(request)) ++row.not_used[request.cluster.kind(device).name];
  for (const auto& [stages, kinds] : row.pipelines)
    for (const auto& [kind, count] : kinds) row.not_used[kind] -= count;
  std::erase_if(row.not_used, [](const auto& kind) { return kind.second == 0; });
  for (const Pipeline& pipeline : found.pipelines) {
    row.microbatches += pipeline.microbatches.size();
    row.stages += pipeline.stages.size();
    row.recomputing += at(std::ranges::count_if(
        pipeline.stages, [](const Stage& stage) { return stage.recompute != Stage().recompute; }));
  }
  for (const auto& [link, bytes] : simulated.bytes_by_link)
    if (link.ends_with(":out")) row.traffic += bytes;
  for (const SimulatedDevice& device : simulated.devices) {
    row.utilisation += device.computes / row.step / static_cast<double>(devices_of(request).size());
    const DeviceKind& kind = request.cluster.kind(device.device);
    row.slowest_computes = std::max(row.slowest_computes, device.computes);
    auto& memory = row.memory[kind.name];
    memory = {std::max(memory.first, device.peak_bytes), static_cast<int64_t>(kind.memory_bytes)};
  }
  return row;
}

// Returns "2 pipelines: 2 stages on 4 A100; 3 stages on 2 A100, 2 V100", equal ones once.
std::string pipelines_text(const StrategyRow& row) {
  std::string text;
  for (size_t p = 0; p < row.pipelines.size();) {
    const auto& pipeline = row.pipelines[p];
    size_t identical = 1;
    while (p + identical < row.pipelines.size() && row.pipelines[p + identical] == pipeline)
      ++identical;
    const auto& [stages, kinds] = pipeline;
    text += fmt::format("{}{}{} stage{} on {}",
                        text.empty() ? "" : "; ",
                        identical > 1 ? fmt::format("{} x ", identical) : "",
                        stages,
                        stages == 1 ? "" : "s",
                        kinds_text(kinds));
    p += identical;
  }
  return fmt::format("{} pipelines: {}", row.pipelines.size(), text);
}

ordered_json to_json(const StrategyRow& row, Nanoseconds bound) {
  ordered_json out;
  out["strategy"] = row.strategy;
  if (row.infeasible) {
    out["infeasible"] = to_string(*row.infeasible);
    return out;
  }
  out["step_ns"] = row.step.value;
  out["computes_ns"] = row.slowest_computes.value;
  out["mean_utilisation"] = row.utilisation;
  out["gap"] = bound.value > 0 ? row.step / bound - 1 : 0.0;
  out["traffic_bytes"] = row.traffic;
  out["pipelines"] = row.pipelines.size();
  out["microbatches"] = row.microbatches;
  out["stages"] = row.stages;
  if (row.pipelines.size() > 1)
    for (const auto& [stages, kinds] : row.pipelines)
      out["by_pipeline"].push_back({{"stages", stages}, {"devices", kinds}});
  out["recomputing_stages"] = row.recomputing;
  if (!row.not_used.empty()) out["not_used"] = row.not_used;
  for (const auto& [kind, bytes] : row.memory)
    out["memory_bytes"][kind] = {{"used", bytes.first}, {"has", bytes.second}};
  return out;
}

// Returns null if no plan fits.
const StrategyRow* fastest(const std::vector<StrategyRow>& rows) {
  const StrategyRow* best = nullptr;
  for (const StrategyRow& row : rows)
    if (!row.infeasible && (!best || row.step < best->step)) best = &row;
  return best;
}

std::string to_text(const std::vector<StrategyRow>& rows, Nanoseconds bound) {
  const StrategyRow* best = fastest(rows);
  std::set<std::string> kinds;
  for (const StrategyRow& row : rows)
    for (const auto& [kind, bytes] : row.memory) kinds.insert(kind);
  std::string titles = "strategy|step|vs best|gap|busiest device|mean utilisation|pipelines|stages";
  titles += "|micro-batches|traffic";
  for (const std::string& kind : kinds) titles += "|" + kind + " memory";
  Table table(titles);
  std::vector<std::pair<std::string, Infeasible>> reasons;
  for (const StrategyRow& row : rows) {
    if (row.infeasible) {
      table.add({row.strategy, "does not fit"});
      reasons.emplace_back(row.strategy, *row.infeasible);
      continue;
    }
    std::vector<std::string> cells{row.strategy,
                                   to_string(row.step),
                                   fmt::format("{:.2f}x", row.step / best->step),
                                   bound.value > 0 ? percent(row.step / bound - 1, 0) : "",
                                   percent(row.slowest_computes / row.step, 0),
                                   percent(row.utilisation, 0),
                                   std::to_string(row.pipelines.size()),
                                   std::to_string(row.stages),
                                   std::to_string(row.microbatches),
                                   to_string(Bytes{row.traffic})};
    for (const std::string& kind : kinds) {
      const auto bytes = row.memory.find(kind);
      cells.push_back(bytes == row.memory.end() ? "-" : to_string(Bytes{bytes->second.first}));
    }
    table.add(std::move(cells));
  }
  std::string text;
  for (const std::string& line : in_short(reasons)) text += line + "\n";
  for (const StrategyRow& row : rows)
    if (row.pipelines.size() > 1)
      text += fmt::format("{}: {}\n", row.strategy, pipelines_text(row));
  for (const StrategyRow& row : rows)
    if (!row.not_used.empty())
      text += fmt::format("{}: does not use {}\n", row.strategy, kinds_text(row.not_used));
  for (const StrategyRow& row : rows)
    if (row.recomputing > 0)
      text += fmt::format("{}: {} of {} stages recompute part of the forward phase\n",
                          row.strategy,
                          row.recomputing,
                          row.stages);
  if (best)
    text += "busiest device, mean utilisation: time that devices compute, as a share of the step\n";
  if (best && bound.value > 0)
    text +=
        fmt::format("gap: step above {}, the lower bound of these strategies in the search model\n",
                    to_string(bound));
  return table.text() + wrapped(text);
}

void run_compare(const CompareArguments& options, Session& session) {
  const RequestOptions& asked = options.request;
  const Graph graph = read_graph(session.files, asked.graph);
  const Cluster cluster = read_cluster(session.files, asked.cluster, session.catalogue);
  const CostModel costs = read_costs(session.files, asked.profile, cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  std::map<std::string, Outcome> known;
  Request request{.graph = graph,
                  .cluster = cluster,
                  .costs = &costs,
                  .global_batch = asked.global_batch,
                  .microbatches = asked.microbatches,
                  .devices = asked.devices,
                  .optimizer = {},
                  .cache = {.analysis = &analysis, .outcomes = &known}};
  std::vector<std::string> wanted = options.strategies;
  if (wanted.empty())
    for (const Strategy& strategy : strategies())
      if (strategy.name != "auto") wanted.emplace_back(strategy.name);
  std::vector<StrategyRow> rows;
  SteadyClock clock;
  Progress progress(session.terminal, clock);
  for (const std::string& strategy : wanted) {
    progress.at(strategy, rows.size() + 1, wanted.size());
    request.strategy = strategy;
    const Outcome& outcome = known.emplace(strategy, plan(request)).first->second;
    rows.push_back(evaluate(strategy, outcome, request));
  }
  const Nanoseconds bound = lower_bound(wanted, request);
  if (!session.json) {
    session.out << to_text(rows, bound);
    if (const StrategyRow* best = fastest(rows))
      session.out << next_text({plan_command(asked, best->strategy)});
    return;
  }
  ordered_json out;
  out["lower_bound_ns"] = bound.value;
  for (const StrategyRow& row : rows) out["strategies"].push_back(to_json(row, bound));
  session.out << out.dump(2) << "\n";
}

}  // namespace

std::function<void()> prepare_compare(Arguments& arguments, Session& session) {
  auto options = std::make_shared<CompareArguments>();
  add_request_options(arguments, options->request);
  arguments.texts("--strategies",
                  options->strategies,
                  "Only these: hap,data-parallel-even; all",
                  {.commas = true, .excludes = {"--layers"}});
  return [options, &session] {
    without_graph(options->request) ? compare_measured(options->request, session)
                                    : run_compare(*options, session);
  };
}

}  // namespace medley
