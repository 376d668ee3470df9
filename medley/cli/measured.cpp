#include "medley/cli/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/base/json_place.h"
#include "medley/cli/inputs.h"
#include "medley/cli/table.h"
#include "medley/measured_layers/layer_planner.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;
using LayerAnswer = std::variant<LayerOutcome, Infeasible>;

TableCosts table_costs(const std::string& path, const LayerTable& table, const Cluster& cluster) {
  return in_plan(path, [&] { return TableCosts(table, cluster); });
}

TableCosts read_table_costs(const std::string& layers,
                            const std::string& cluster,
                            Session& session) {
  const LayerTable table =
      parse_layer_table(read_input(session.files, layers, "a layer table"), layers);
  return table_costs(layers, table, read_cluster(session.files, cluster, session.catalogue));
}

LayerPlan read_layer_plan(const std::string& path, Session& session) {
  const std::string text = read_input(session.files, path, "a plan");
  if (says_format(text, "medley-plan"))
    throw Error(Blame::kCaller, path + ": found a plan for a graph, expected one over layers");
  return parse_layer_plan(text, path);
}

void verify_layer_plan(const LayerPlan& plan, const std::string& path, const TableCosts& costs) {
  in_plan(path, [&] { verify(plan, costs); });
}

int devices(const LayerPlan& plan) {
  int sum = 0;
  for (const LayerStage& stage : plan.stages) sum += stage.replicas * stage.tensor_parallel;
  return sum;
}

std::string mesh_text(const LayerStage& stage) {
  const int all = stage.replicas * stage.tensor_parallel;
  if (stage.tensor_parallel == 1) return fmt::format("{} of {}", all, stage.pool);
  return fmt::format("{} of {}: {} x {}", all, stage.pool, stage.replicas, stage.tensor_parallel);
}

std::string plan_text(const LayerPlan& plan) {
  const int64_t rows = plan.global_batch / plan.microbatches;
  std::string text = fmt::format(
      "{} rows a step on {} devices: {} micro-batch{} of {} rows through {} stage{}{}.\n\n",
      plan.global_batch,
      devices(plan),
      plan.microbatches,
      plan.microbatches == 1 ? "" : "es",
      rows,
      plan.stages.size(),
      plan.stages.size() == 1 ? "" : "s",
      plan.schedule.empty() ? "" : ", scheduled by " + plan.schedule);
  Table table("stage|layers|devices|rows of a replica|in flight");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerStage& s = plan.stages[i];
    table.add({std::to_string(i),
               fmt::format("{} to {}", s.begin, s.end - 1),
               mesh_text(s),
               std::to_string(rows / s.replicas),
               std::to_string(s.in_flight)});
  }
  text += table.text();
  if (std::ranges::any_of(plan.stages, [](const auto& s) { return s.tensor_parallel > 1; }))
    text += "8 x 4: 8 replicas that divide the rows, each of 4 devices that divide the layers\n";
  for (const std::string& each : plan.left_out) text += fmt::format("Left out: {}.\n", each);
  return text;
}

std::string lacks_text(const LayerStepTimes& report) {
  std::string text;
  for (size_t i = 0; i < report.stages.size(); ++i)
    if (const LayerStageTimes& s = report.stages[i]; s.used > s.has)
      text += fmt::format("Stage {} lacks {} on each device.\n", i, to_string(s.used - s.has));
  return text;
}

std::string report_text(const LayerPlan& plan, const LayerStepTimes& report) {
  std::string text = fmt::format(
      "Step: {}, {}; bubble {}.\n\n",
      to_string(report.step),
      samples_text(static_cast<double>(plan.global_batch) / to_seconds(report.step).value),
      percent(report.bubble));
  Table table(
      "stage|forward|backward|idle|update|activations to next|gradients back|memory|available");
  for (size_t i = 0; i < report.stages.size(); ++i) {
    const LayerStageTimes& s = report.stages[i];
    const bool last = i + 1 == report.stages.size();
    table.add({std::to_string(i),
               to_string(s.costs.forward),
               to_string(s.costs.backward),
               percent(s.idle / (s.busy + s.idle)),
               to_string(s.costs.update),
               last ? "" : to_string(report.boundaries[i].forward),
               last ? "" : to_string(report.boundaries[i].backward),
               to_string(s.used),
               to_string(s.has)});
  }
  text += table.text() + lacks_text(report);
  if (report.tied.value > 0)
    text += fmt::format("Gradients of tied layers, over the stages that have them: {}.\n",
                        to_string(report.tied));
  return text;
}

// Returns a line for each pool with unused devices.
std::string left_out_text(const std::vector<LeftOut>& pools) {
  std::string text;
  for (const LeftOut& each : pools) text += fmt::format("Left out: {}.\n", to_string(each));
  return wrapped(text);
}

Json left_out_json(const std::vector<LeftOut>& pools) {
  Json json = Json::array();
  for (const LeftOut& each : pools)
    json.push_back({{"pool", each.pool}, {"devices", each.devices}, {"why", each.why}});
  return json;
}

std::string with_left_out(std::string reason, const TableCosts& costs) {
  for (const LeftOut& each : left_out(costs)) reason += "; left out: " + to_string(each);
  return reason;
}

Json plan_json(const LayerPlan& plan) { return Json::parse(print(plan)); }

Json report_json(const LayerPlan& plan, const LayerStepTimes& report) {
  Json json = {
      {"step_nanoseconds", report.step.value},
      {"rows_per_second", static_cast<double>(plan.global_batch) / to_seconds(report.step).value},
      {"bubble", report.bubble},
      {"stages", Json::array()},
      {"boundaries", Json::array()}};
  for (const LayerStageTimes& s : report.stages)
    json["stages"].push_back({{"forward_nanoseconds", s.costs.forward.value},
                              {"backward_nanoseconds", s.costs.backward.value},
                              {"update_nanoseconds", s.costs.update.value},
                              {"busy_nanoseconds", s.busy.value},
                              {"idle_nanoseconds", s.idle.value},
                              {"peak_bytes", s.used.value},
                              {"available_bytes", s.has.value}});
  for (const BoundaryTimes& b : report.boundaries)
    json["boundaries"].push_back(
        {{"forward_nanoseconds", b.forward.value}, {"backward_nanoseconds", b.backward.value}});
  if (report.tied.value > 0) json["tied_nanoseconds"] = report.tied.value;
  return json;
}

LayerRequest request_of(const RequestOptions& options, const TableCosts& costs) {
  return {costs, options.global_batch, options.microbatches};
}

struct Row {
  std::string name;
  LayerAnswer outcome;
};

std::string most_memory(const LayerOutcome& outcome) {
  Bytes most, has;
  for (const LayerStageTimes& s : outcome.report.stages)
    if (s.has.value > 0 && (has.value == 0 || s.used / s.has > most / has))
      most = s.used, has = s.has;
  return fmt::format("{} of {}", to_string(most), to_string(has));
}

Nanoseconds fastest(const std::vector<Row>& rows) {
  Nanoseconds best{INT64_MAX};
  for (const Row& row : rows)
    if (const auto* found = std::get_if<LayerOutcome>(&row.outcome))
      best = std::min(best, found->report.step);
  return best;
}

std::string rows_text(const std::vector<Row>& rows) {
  Table table("plan|step|vs best|stages|micro-batches|bubble|fullest memory");
  std::string reasons;
  for (const Row& row : rows) {
    const auto* found = std::get_if<LayerOutcome>(&row.outcome);
    if (!found) {
      table.add({row.name, "does not fit"});
      reasons += fmt::format("{}: {}\n", row.name, std::get<Infeasible>(row.outcome).reason);
      continue;
    }
    table.add({row.name,
               to_string(found->report.step),
               fmt::format("{:.2f}x", found->report.step / fastest(rows)),
               std::to_string(found->plan.stages.size()),
               std::to_string(found->plan.microbatches),
               percent(found->report.bubble),
               most_memory(*found)});
  }
  return table.text() + wrapped(reasons);
}

Json rows_json(const std::vector<Row>& rows) {
  Json json = {{"plans", Json::array()}};
  for (const Row& row : rows) {
    Json each = {{"name", row.name}};
    if (const auto* found = std::get_if<LayerOutcome>(&row.outcome)) {
      each["plan"] = plan_json(found->plan);
      each["simulated"] = report_json(found->plan, found->report);
    } else {
      each["infeasible"] = std::get<Infeasible>(row.outcome).reason;
    }
    json["plans"].push_back(std::move(each));
  }
  return json;
}

}  // namespace

void plan_measured(const RequestOptions& options, const std::string& output, Session& session) {
  const TableCosts costs = read_table_costs(options.layers, options.cluster, session);
  const LayerAnswer outcome = plan_layers(request_of(options, costs));
  if (const auto* no = std::get_if<Infeasible>(&outcome))
    throw Error(Blame::kCaller,
                fmt::format("{} on {}: no plan fits: {}",
                            options.layers,
                            options.cluster,
                            with_left_out(no->reason, costs)));
  const auto& found = std::get<LayerOutcome>(outcome);
  if (output.empty() && session.json) {
    session.out << print(found.plan);
    return;
  }
  if (!output.empty()) write_atomically(session.files, output, print(found.plan));
  if (session.json) {
    Json json = report_json(found.plan, found.report);
    const std::vector<LeftOut> others = left_out(found.plan, costs);
    if (!others.empty()) json["left_out"] = left_out_json(others);
    session.out << json.dump(2) + "\n";
    return;
  }
  session.out << plan_text(found.plan) + "\n" + report_text(found.plan, found.report);
}

void compare_measured(const RequestOptions& options, Session& session) {
  const TableCosts costs = read_table_costs(options.layers, options.cluster, session);
  const LayerRequest request = request_of(options, costs);
  std::vector<Row> rows{{"grid", plan_grid(request)}, {"best", plan_layers(request)}};
  if (const auto* best = std::get_if<LayerOutcome>(&rows[1].outcome)) {
    const LayerPlan plan = best->plan;
    for (const std::string_view schedule : {"gpipe", "1f1b", "eager-1f1b"})
      rows.push_back({fmt::format("best, {}", schedule), scheduled(plan, schedule, costs)});
  }
  const auto* best = std::get_if<LayerOutcome>(&rows[1].outcome);
  const std::vector<LeftOut> others = best ? left_out(best->plan, costs) : left_out(costs);
  if (session.json) {
    Json json = rows_json(rows);
    if (!others.empty()) json["left_out"] = left_out_json(others);
    session.out << json.dump(2) + "\n";
    return;
  }
  session.out << rows_text(rows) +
                     "grid: equal stages by 1F1B, as if all devices were equal\n"
                     "best, gpipe: the stages of the best plan by that schedule\n" +
                     left_out_text(others) + (best ? next_text({plan_command(options, "")}) : "");
}

void simulate_measured(const PlannedOptions& options, Session& session) {
  const TableCosts costs = read_table_costs(options.layers, options.cluster, session);
  const LayerPlan plan = read_layer_plan(options.plan, session);
  verify_layer_plan(plan, options.plan, costs);
  const LayerStepTimes report = time_step(plan, costs);
  session.out << (session.json ? report_json(plan, report).dump(2) + "\n"
                               : report_text(plan, report));
}

void memory_measured(const PlannedOptions& options, Session& session) {
  const TableCosts costs = read_table_costs(options.layers, options.cluster, session);
  const LayerPlan plan = read_layer_plan(options.plan, session);
  verify_layer_plan(plan, options.plan, costs);
  std::string titles = "stage|devices|parameters, gradients, optimizer|saved for backward";
  Table table(titles + "|received and sent|fixed|peak|available|saved per micro-batch");
  Json json = Json::array();
  const LayerStepTimes report = time_step(plan, costs);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerStageTimes& s = report.stages[i];
    const Bytes fixed = costs.fixed(s.mesh);
    const Bytes state = s.costs.persistent - fixed;
    const Bytes saved = s.used - s.costs.persistent - s.costs.transient;
    table.add({std::to_string(i),
               mesh_text(plan.stages[i]),
               to_string(state),
               to_string(saved),
               to_string(s.costs.transient),
               to_string(fixed),
               to_string(s.used),
               to_string(s.has),
               to_string(s.costs.saved)});
    json.push_back({{"stage", i},
                    {"pool", plan.stages[i].pool},
                    {"devices", s.mesh.devices()},
                    {"state_bytes", state.value},
                    {"saved_bytes", saved.value},
                    {"transient_bytes", s.costs.transient.value},
                    {"fixed_bytes", fixed.value},
                    {"peak_bytes", s.used.value},
                    {"available_bytes", s.has.value},
                    {"saved_per_microbatch_bytes", s.costs.saved.value}});
  }
  session.out << (session.json ? json.dump(2) + "\n" : table.text() + lacks_text(report));
}

std::string check_measured(const std::string& path,
                           const LayerTable& table,
                           const Cluster& cluster,
                           const std::vector<std::pair<std::string, LayerPlan>>& plans) {
  const TableCosts costs = table_costs(path, table, cluster);
  for (const auto& [place, plan] : plans) {
    verify_layer_plan(plan, place, costs);
    if (std::string lacks = lacks_text(time_step(plan, costs)); !lacks.empty()) {
      lacks.pop_back();
      throw Error(Blame::kCaller, fmt::format("{}: {}", place, lacks));
    }
  }
  return left_out_text(left_out(costs));
}

void explain_measured(const std::string& plan_path,
                      const std::string& layers,
                      const std::string& cluster,
                      Session& session) {
  const LayerPlan plan = read_layer_plan(plan_path, session);
  if (layers.empty() != cluster.empty())
    throw Error(Blame::kCaller,
                fmt::format("found {} without {}, expected both or neither",
                            layers.empty() ? "--cluster" : "--layers",
                            layers.empty() ? "--layers" : "--cluster"));
  Json json = plan_json(plan);
  std::string text = plan_text(plan);
  if (!layers.empty()) {
    const TableCosts costs = read_table_costs(layers, cluster, session);
    verify_layer_plan(plan, plan_path, costs);
    const LayerStepTimes report = time_step(plan, costs);
    json["simulated"] = report_json(plan, report);
    text += "\n" + report_text(plan, report);
    const auto slowest = std::ranges::max_element(
        report.stages, {}, [](const LayerStageTimes& s) { return s.busy; });
    text += fmt::format("Stage {} works longest, {} for a micro-batch.\n",
                        slowest - report.stages.begin(),
                        to_string(slowest->costs.forward + slowest->costs.backward));
  }
  session.out << (session.json ? json.dump(2) + "\n" : text);
}

}  // namespace medley
