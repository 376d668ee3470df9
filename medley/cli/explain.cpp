#include "medley/cli/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/base/units.h"
#include "medley/cli/explain_groups.h"
#include "medley/cli/explain_pipelines.h"
#include "medley/cli/explain_words.h"
#include "medley/cli/stage_names.h"
#include "medley/cli/table.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/plan/compute_types.h"
#include "medley/plan/texts.h"
#include "medley/planner/node_loss.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

Json devices_json(const Plan& plan, const Pipeline& pipeline, size_t number) {
  const Stage& stage = pipeline.stages[number];
  const std::vector<Microbatch> microbatches = microbatches_of(pipeline, number);
  Json rows = Json::array();
  for (size_t d = 0; d < stage.mesh.devices.size(); ++d) {
    std::vector<int64_t> lengths;
    int64_t sum = 0;
    for (const Microbatch& microbatch : microbatches) {
      // A 2-D mesh divides rows along the first axis.
      const size_t at = d * static_cast<size_t>(stage.mesh.shape[0]) / stage.mesh.devices.size();
      // Without a graph the plan is unverified: it may have too few lengths.
      lengths.push_back(at < microbatch.lengths.size() ? microbatch.lengths[at] : microbatch.rows);
      sum += lengths.back();
    }
    rows.push_back({{"device", stage.mesh.devices[d]},
                    {"rows", sum},
                    {"share", static_cast<double>(sum) / static_cast<double>(plan.global_batch)},
                    {"microbatches", lengths}});
  }
  return rows;
}

// Returns the plan's entries on placements, batch, ops and updates, with their meaning.
Json entries_json(const Plan& plan, const Stage& stage) {
  Json rows = Json::array();
  const auto add = [&](const char* what, const Choices& choices, bool placements) {
    for (const auto& [key, text] : choices)
      rows.push_back({{"about", what},
                      {"name", key},
                      {"plan_text", text},
                      {"meaning",
                       placements ? words(plan, parse_placement_text(text))
                                  : words(plan, parse_choice_text(text))}});
  };
  add("placements", stage.placements, true);
  add("batch", stage.batch, true);
  add("ops", stage.ops, false);
  add("updates", stage.updates, true);
  return rows;
}

// Larger plans are not hand-written: their ops are counted.
constexpr size_t kManyEntries = 16;

// Returns the expansion of all ops and parameters or, without a graph, the plan's entries.
Json groups_json(const Plan& plan, const Stage& stage, const Completed* completed) {
  if (completed) return groups_json(plan, ops_said(*completed), parameters_said(*completed));
  std::vector<Said> ops, stored;
  for (const auto& [name, text] : stage.ops) ops.push_back({name, text});
  for (const auto& [name, text] : stage.placements) stored.push_back({name, text});
  return groups_json(plan, ops, stored);
}

// Adds device types, memory and times.
void add_measures(Json& json,
                  const Program& program,
                  const CostModel& costs,
                  const Simulation& simulation,
                  const std::vector<DeviceMemory>& memory,
                  int64_t rows) {
  const double step = to_seconds(simulation.step).value;
  // The last device to reach a communication does not wait in it.
  Nanoseconds communicates = simulation.step;
  std::vector<size_t> next(program.stages.size());
  for (size_t d = 0; d < simulation.devices.size(); ++d) {
    const SimulatedDevice& simulated = simulation.devices[d];
    const auto stage = at(simulated.stage);
    Json& device = json["stages"][stage]["devices"][next[stage]++];
    const DeviceKind& kind = costs.cluster().kind(simulated.device);
    const double computes = to_seconds(simulated.computes).value;
    communicates = std::min(communicates, simulated.communicates);
    device["device_type"] = kind.name;
    device["memory_bytes"] = memory[d].use.peak;
    device["available_bytes"] = static_cast<int64_t>(kind.memory_bytes);
    device["computes_seconds"] = computes;
    device["waits_share"] = step > 0 ? 1 - computes / step : 0;
  }
  json["step_seconds"] = step;
  json["rows_per_second"] = step > 0 ? static_cast<double>(rows) / step : 0;
  if (program.stages.size() == 1)
    json["communicates_seconds"] = to_seconds(communicates).value;
  else
    json["bubble_share"] = simulation.bubble();
}

// Adds the simulated activity of stages and pipelines.
void add_simulated(Json& json,
                   const GraphAnalysis& analysis,
                   const Plan& plan,
                   const Program& program,
                   const CostModel& costs) {
  Simulation simulation;
  std::vector<DeviceMemory> memory;
  for_each_in_parallel(2, [&](size_t i) {
    if (i == 0)
      simulation = simulate(program, costs, {.syncs = true});
    else
      memory = memory_uses(program);
  });
  add_measures(json, program, costs, simulation, memory, plan.global_batch);
  if (plan.tolerate_node_loss > 0)
    json["tolerates_node_loss"] =
        to_string(replication_cost(program, costs.cluster(), simulation.step), simulation.step);
  if (program.stages.size() == 1) return;
  const std::vector<LayerRange> layers = layer_ranges(analysis.graph, plan);
  for (size_t s = 0; s < layers.size(); ++s) json["stages"][s]["layers"] = to_string(layers[s]);
  if (plan.pipelines.size() > 1) add_measures(json["pipelines"], program, costs, simulation);
  Json shared = shared_json(program, layers, costs, simulation);
  if (!shared.empty()) json["shared"] = std::move(shared);
}

Json inputs_json(const Completed& completed) {
  const Graph& graph = completed.prepared->graph;
  Json rows = Json::array();
  for (const Input& input : graph.inputs) {
    std::string type;
    for (const Size& size : graph.values[at(input.value)].type.shape)
      type += (type.empty() ? "" : ", ") + to_string(size, graph.symbols);
    rows.push_back(
        {{"input", input.name},
         {"kind", to_string(input.kind)},
         {"shape", "[" + type + "]"},
         {"placement",
          placement_text(
              completed, input.value, completed.assignment.placements[at(input.value)])}});
  }
  return rows;
}

Json ops_json(const Completed& completed) {
  const Graph& graph = completed.prepared->graph;
  Json rows = Json::array();
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    std::string results;
    for (ValueId value : graph.ops[i].results)
      if (value != kNone)
        results += (results.empty() ? "" : "; ") +
                   placement_text(completed, value, completed.assignment.placements[at(value)]);
    rows.push_back({{"op", completed.prepared->names[i]},
                    {"choice", choices_text(completed, static_cast<OpId>(i))},
                    {"results", results}});
  }
  return rows;
}

// Returns "all-reduce".
std::string kind_text(CommunicationKind kind) {
  std::string text = to_string(kind);
  std::ranges::replace(text, '_', '-');
  return text;
}

// `bytes`: the first device's input for the first micro-batch, or its receive from another stage.
Json communications_json(const LoweredStage& stage) {
  Json rows = Json::array();
  for (const Communication& communication : stage.communications) {
    int64_t bytes = 0;
    const std::vector<ValueId>& tensors =
        communication.inputs.empty() ? communication.outputs : communication.inputs;
    for (ValueId value : tensors)
      bytes += num_bytes(stage.graph.values[at(value)].type, stage.tables[0][0]);
    rows.push_back({{"communication", communication.name},
                    {"kind", kind_text(communication.kind)},
                    {"tensors", tensors.size()},
                    {"bytes", bytes}});
  }
  return rows;
}

// Returns the updating pipelines of each parameter.
Json owners_json(const Plan& plan) {
  Json rows = Json::array();
  for (const auto& [pattern, text] : plan.owners)
    rows.push_back(
        {{"owners_of", pattern}, {"plan_text", text}, {"update", owner_words(plan, text)}});
  return rows;
}

std::string count_text(size_t count, std::string_view what, std::string_view plural = "s") {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : plural);
}

// Returns ", 2 pipelines of 1 to 3 stages", or "" for one stage.
std::string pipelines_phrase(const Plan& plan) {
  size_t least = 0, most = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    least = least == 0 ? pipeline.stages.size() : std::min(least, pipeline.stages.size());
    most = std::max(most, pipeline.stages.size());
  }
  if (plan.pipelines.size() == 1)
    return most == 1 ? "" : fmt::format(", {}", count_text(1, "pipeline"));
  return fmt::format(", {} of {}{}",
                     count_text(plan.pipelines.size(), "pipeline"),
                     least < most ? fmt::format("{} to ", least) : "",
                     count_text(most, "stage"));
}

std::string summary(const Plan& plan) {
  size_t devices = 0, microbatches = 0;
  int64_t interleave = 1, late = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    microbatches += pipeline.microbatches.size();
    interleave = std::max(interleave, pipeline.interleave);
    for (const int64_t each : pipeline.deferred_weights) late = std::max(late, each);
    for (const Stage& stage : pipeline.stages) devices += stage.mesh.devices.size();
  }
  return fmt::format("{}: {} a step on {}, in {}{}{}{}.",
                     plan.strategy.empty() ? "written by hand" : plan.strategy,
                     count_text(at(plan.global_batch), "row"),
                     count_text(devices, "device"),
                     count_text(microbatches, "micro-batch", "es"),
                     interleave > 1 ? fmt::format(", {} interleaved", interleave) : "",
                     pipelines_phrase(plan),
                     late > 0 ? fmt::format(", weight gradients deferred by up to {}",
                                            count_text(at(late), "micro-batch", "es"))
                              : "");
}

// Returns "bf16 is computed in f16 by V100-16GB (the loss is scaled), in f32 by P100-16GB."
std::string types_text(const Json& types) {
  std::string out;
  for (const auto& [kind, dtype] : types.items()) {
    const bool scaled = dtype == to_string(DType::kF16);
    out += fmt::format("{} in {} by {}{}",
                       out.empty() ? "bf16 is computed" : ",",
                       dtype.get<std::string>(),
                       kind,
                       scaled ? " (the loss is scaled)" : "");
  }
  return out + ".\n";
}

std::string cell_text(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return runs_text(value.get<std::vector<int64_t>>());
  if (key.ends_with("bytes")) return to_string(Bytes{value.get<int64_t>()});
  if (key.ends_with("seconds")) return to_string(Seconds{value.get<double>()});
  if (key.ends_with("share")) return percent(value.get<double>());
  return value.dump();
}

// Returns rows as a table with the keys of the first row, without their units, as header.
std::string table_text(const Json& rows) {
  std::vector<std::string> header;
  for (const auto& [key, value] : rows.at(0).items()) {
    std::string title = key;
    for (std::string_view unit : {"_bytes", "_seconds", "_share"})
      if (title.ends_with(unit)) title.resize(title.size() - unit.size());
    if (title == "microbatches") title = "rows per micro-batch";
    if (title == "plan_text") title = "in plan.json";
    if (title == "computes") title = "busy";
    if (title == "waits") title = "idle";
    std::replace(title.begin(), title.end(), '_', ' ');
    header.push_back(title);
  }
  Table table(header);
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const auto& [key, value] : row.items()) cells.push_back(cell_text(key, value));
    table.add(std::move(cells));
  }
  return table.text();
}

// Returns the devices of the cluster without work in the plan.
Json not_used_json(const Plan& plan, const Cluster& cluster) {
  std::set<std::string_view> used;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      used.insert(stage.mesh.devices.begin(), stage.mesh.devices.end());
  Json names = Json::array();
  for (const Device& device : cluster.devices)
    if (!used.contains(device.name)) names.push_back(device.name);
  return names;
}

constexpr size_t kMostNames = 8;

std::string not_used_text(const Json& names) {
  std::string out = "Not used:";
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i)
    out += (i ? ", " : " ") + names[i].get<std::string>();
  if (names.size() > kMostNames) out += fmt::format(" and {} more", names.size() - kMostNames);
  return wrapped(out + ".\n");
}

// Adds one stage's rows. With several stages, each row has the number or name of its stage.
void add_rows(Json& all, const Json& rows, const Json& stage, const Program& program) {
  if (all.is_null()) all = Json::array();
  for (const Json& row : rows) {
    Json whole = Json::object();
    if (program.stages.size() > 1) whole["stage"] = stage;
    whole.update(row);
    all.push_back(std::move(whole));
  }
}

// Returns the text on a stage's recomputation.
std::string recompute_text(std::string_view recompute) {
  if (recompute == Stage().recompute) return "";
  return fmt::format("{} is recomputed in the backward phase. Only the inputs of {} are stored.\n",
                     recompute == "all" ? "The forward phase" : "Each block of the forward phase",
                     recompute == "all" ? "the stage" : "blocks");
}

// Returns "stage 0/1, layers 6-11, from h.3.ln_1/native_layer_norm#0".
std::string heading(const std::string& name, const Json& stage) {
  std::string text = "stage " + name;
  if (stage.contains("layers")) {
    const auto layers = stage["layers"].get<std::string>();
    text += fmt::format(", layer{} {}", layers.find('-') == std::string::npos ? "" : "s", layers);
  }
  if (const auto first = stage["first"].get<std::string>(); !first.empty())
    text += ", from " + first;
  return wrapped(text + "\n");
}

}  // namespace

Json explain_json(const Plan& plan, const ExplainOptions& options) {
  Json json = {{"summary", summary(plan)}};
  for (const auto& [kind, dtype] : plan.bf16_as) json["bf16_as"][kind] = to_string(dtype);
  if (plan.pipelines.size() > 1) json["pipelines"] = pipelines_json(plan, options.costs);
  std::optional<GraphAnalysis> own;
  const GraphAnalysis* analysis = options.analysis;
  if (options.graph && options.costs) {
    const Cluster& cluster = options.costs->cluster();
    // Planners use no loss scale.
    if (!analysis ||
        (!analysis->optimizer.scales_loss && computes_in_f16(plan, *options.graph, cluster)))
      analysis = &own.emplace(analyse(*options.graph, plan, cluster, {}));
  }
  std::vector<Completed> completed;  // [stage]
  if (analysis) completed = complete_stages(*analysis, plan);
  std::vector<std::pair<size_t, size_t>> places;
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) places.emplace_back(p, s);
  std::vector<Json> stages(places.size());
  for_each_in_parallel(places.size(), [&](size_t i) {
    const auto [p, s] = places[i];
    const Stage& stage = plan.pipelines[p].stages[s];
    stages[i] = {{"stage", fmt::format("pipelines[{}].stages[{}]", p, s)},
                 {"first", stage.first},
                 {"recompute", stage.recompute},
                 {"devices", devices_json(plan, plan.pipelines[p], s)},
                 {"entries", entries_json(plan, stage)}};
    if (!options.expanded && stages[i]["entries"].size() > kManyEntries)
      stages[i][analysis ? "groups" : "said"] =
          groups_json(plan, stage, analysis ? &completed[i] : nullptr);
  });
  json["stages"] = std::move(stages);
  if (!plan.owners.empty()) json["owners"] = owners_json(plan);
  if (!options.graph) return json;
  json["graph"] = options.graph->name;
  if (!analysis) return json;
  json["not_used"] = not_used_json(plan, options.costs->cluster());
  const Program program =
      lower(*analysis, completed, plan, options.costs->cluster(), {.hash_plan = false});
  add_simulated(json, *analysis, plan, program, *options.costs);
  if (!options.expanded) return json;
  const std::vector<std::string> names = stage_names(program);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const Json stage = plan.pipelines.size() > 1 ? Json(names[s]) : Json(s);
    add_rows(json["inputs"], inputs_json(completed[s]), stage, program);
    add_rows(json["ops"], ops_json(completed[s]), stage, program);
    add_rows(json["communications"], communications_json(program.stages[s]), stage, program);
  }
  return json;
}

std::string explain(const Plan& plan, const ExplainOptions& options) {
  const Json json = explain_json(plan, options);
  std::string out = wrapped(json["summary"].get<std::string>() + "\n");
  if (json.contains("bf16_as")) out += wrapped(types_text(json["bf16_as"]));
  if (json.contains("pipelines")) out += "\n" + pipelines_text(json["pipelines"]);
  const std::vector<std::string> names = stage_names(plan);
  for (size_t s = 0; s < names.size(); ++s) {
    const Json& stage = json["stages"][s];
    out += "\n";
    if (names.size() > 1) out += heading(names[s], stage);
    out += table_text(stage["devices"]);
    out += recompute_text(stage["recompute"].get<std::string>());
    if (stage.contains("groups"))
      out += "\n" + groups_text(stage["groups"]);
    else if (stage.contains("said"))
      out += "\n" + said_text(stage["said"]);
    else if (!stage["entries"].empty())
      out += "\n" + table_text(stage["entries"]);
  }
  if (json.contains("owners")) out += "\n" + table_text(json["owners"]);
  if (json.contains("shared")) out += "\n" + shared_text(json["shared"]);
  if (json.contains("not_used") && !json["not_used"].empty())
    out += "\n" + not_used_text(json["not_used"]);
  if (json.contains("step_seconds"))
    out += fmt::format(
        "\nPredicted step: {}, {}; {}.\n",
        to_string(Seconds{json["step_seconds"].get<double>()}),
        samples_text(json["rows_per_second"].get<double>()),
        json.contains("bubble_share")
            ? percent(json["bubble_share"].get<double>()) + " of it is idle time (pipeline bubble)"
            : fmt::format("communication: {} (overlap not subtracted)",
                          to_string(Seconds{json["communicates_seconds"].get<double>()})));
  if (json.contains("tolerates_node_loss"))
    out += wrapped(fmt::format("With it {}.\n", json["tolerates_node_loss"].get<std::string>()));
  if (std::any_of(json["stages"].begin(), json["stages"].end(), [](const Json& stage) {
        return stage.contains("groups") || stage.contains("said");
      }))
    return out;
  out += "\nAnything not listed is replicated; ops run where the least data moves.\n";
  for (const char* section : {"inputs", "ops", "communications"})
    if (json.contains(section) && !json[section].empty()) out += "\n" + table_text(json[section]);
  return out;
}

}  // namespace medley
