#include "medley/measured_layers/layer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/json_place.h"
#include "medley/base/json_string.h"

namespace medley {
namespace {

constexpr int64_t kMostBatch = int64_t{1} << 40;
constexpr int64_t kMostMicrobatches = int64_t{1} << 20;
constexpr int64_t kMost = 65536;  // layers, devices

// `in_flight` is 0 if absent in the file.
LayerStage read_stage(const JsonPlace& at) {
  LayerStage stage;
  stage.in_flight = 0;
  const auto number = [](int& out, int64_t least) {
    return [&out, least](const JsonPlace& p) {
      out = static_cast<int>(read_integer(p, least, kMost));
    };
  };
  read_object(at,
              {{"layers",
                true,
                [&](const JsonPlace& p) {
                  const std::vector<int64_t> range = read_integers(p, 0, kMost);
                  if (range.size() != 2 || range[0] >= range[1])
                    p.refuse("the first layer and the one behind the last: [0, 7]");
                  stage.begin = static_cast<int>(range[0]);
                  stage.end = static_cast<int>(range[1]);
                }},
               {"pool", true, [&](const JsonPlace& p) { stage.pool = read_text(p); }},
               {"replicas", false, number(stage.replicas, 1)},
               {"tensor_parallel", false, number(stage.tensor_parallel, 1)},
               {"in_flight", false, [&](const JsonPlace& p) {
                  stage.in_flight = static_cast<int>(read_integer(p, 1, kMostMicrobatches));
                }}});
  return stage;
}

[[noreturn]] void refuse(size_t stage, const std::string& what) {
  throw Error(Blame::kCaller, fmt::format("stages[{}].{}", stage, what));
}

int find_pool(const Cluster& cluster, const std::string& name) {
  for (size_t p = 0; p < cluster.pools.size(); ++p)
    if (cluster.pools[p].name == name) return static_cast<int>(p);
  return -1;
}

LayerMesh mesh_of(const LayerStage& stage, const TableCosts& costs) {
  return {find_pool(costs.cluster(), stage.pool), stage.replicas, stage.tensor_parallel};
}

int64_t rows_of(const LayerPlan& plan) { return plan.global_batch / plan.microbatches; }

StageOption costs_of(const LayerPlan& plan, const LayerStage& stage, const TableCosts& costs) {
  return *costs.stage(stage.begin, stage.end, mesh_of(stage, costs), rows_of(plan));
}

BoundaryTimes boundary_after(const LayerPlan& plan, size_t stage, const TableCosts& costs) {
  const LayerMesh from = mesh_of(plan.stages[stage], costs);
  const LayerMesh to = mesh_of(plan.stages[stage + 1], costs);
  const LinkCurve up = *costs.link(from.pool, from.devices(), to.pool, to.devices());
  const LinkCurve down = *costs.link(to.pool, to.devices(), from.pool, from.devices());
  const Bytes bytes = costs.cut(plan.stages[stage].end - 1, rows_of(plan));
  return {costs.transfer(up, bytes), costs.transfer(down, bytes), up.latency};
}

void verify_stage(const LayerPlan& plan, size_t i, const TableCosts& costs) {
  const LayerStage& stage = plan.stages[i];
  const int expected = i == 0 ? 0 : plan.stages[i - 1].end;
  if (stage.begin != expected)
    refuse(i, fmt::format("layers: found a first layer {}, expected {}", stage.begin, expected));
  if (stage.end > costs.layers())
    refuse(i,
           fmt::format("layers: found {} layers, expected at most {}", stage.end, costs.layers()));
  const LayerMesh mesh = mesh_of(stage, costs);
  if (mesh.pool < 0)
    refuse(i, fmt::format("pool: found {}, expected a pool of the cluster", stage.pool));
  if (const std::string why = costs.misfit(mesh, rows_of(plan)); !why.empty()) refuse(i, why);
  if (i == 0) return;
  const LayerStage& before = plan.stages[i - 1];
  if (stage.in_flight > before.in_flight)
    refuse(i,
           fmt::format("in_flight: found {}, expected at most {}, as the stage before has",
                       stage.in_flight,
                       before.in_flight));
  const LayerMesh from = mesh_of(before, costs);
  if (!costs.link(from.pool, from.devices(), mesh.pool, mesh.devices()))
    refuse(i,
           fmt::format(
               "pool: found {}, expected one that a network links to {}", stage.pool, before.pool));
}

}  // namespace

std::string print(const LayerPlan& plan) {
  std::string out = "{\n  \"format\": \"medley-layer-plan\",\n  \"version\": 1,\n";
  if (!plan.table_hash.empty())
    out += fmt::format("  \"table_hash\": {},\n", json_string(plan.table_hash));
  if (!plan.cluster_hash.empty())
    out += fmt::format("  \"cluster_hash\": {},\n", json_string(plan.cluster_hash));
  out += fmt::format(
      "  \"global_batch\": {},\n  \"microbatches\": {},\n", plan.global_batch, plan.microbatches);
  if (!plan.schedule.empty())
    out += fmt::format("  \"schedule\": {},\n", json_string(plan.schedule));
  if (plan.predicted.value > 0)
    out += fmt::format("  \"predicted_ns\": {},\n", plan.predicted.value);
  if (!plan.left_out.empty()) {
    std::string list;
    for (const std::string& each : plan.left_out)
      list += (list.empty() ? "" : ", ") + json_string(each);
    out += fmt::format("  \"left_out\": [{}],\n", list);
  }
  out += "  \"stages\": [";
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerStage& s = plan.stages[i];
    out += fmt::format(
        "{}\n    {{\"layers\": [{}, {}], \"pool\": {}, \"replicas\": {}, \"tensor_parallel\": {}, "
        "\"in_flight\": {}}}",
        i > 0 ? "," : "",
        s.begin,
        s.end,
        json_string(s.pool),
        s.replicas,
        s.tensor_parallel,
        s.in_flight);
  }
  return out + "\n  ]\n}\n";
}

bool is_layer_plan(std::string_view text) { return says_format(text, "medley-layer-plan"); }

LayerPlan parse_layer_plan(std::string_view text, std::string_view file) {
  const nlohmann::json json = parse_json(text, file);
  LayerPlan plan;
  read_object(
      {&json, std::string(file), ""},
      {{"format", true, [](const JsonPlace& p) { read_format(p, "medley-layer-plan"); }},
       {"version", true, read_version},
       {"table_hash", false, [&](const JsonPlace& p) { plan.table_hash = read_text(p); }},
       {"cluster_hash", false, [&](const JsonPlace& p) { plan.cluster_hash = read_text(p); }},
       {"global_batch",
        true,
        [&](const JsonPlace& p) { plan.global_batch = read_integer(p, 1, kMostBatch); }},
       {"microbatches",
        true,
        [&](const JsonPlace& p) {
          plan.microbatches = static_cast<int>(read_integer(p, 1, kMostMicrobatches));
          if (plan.global_batch % plan.microbatches != 0)
            p.refuse("a number that divides global_batch");
        }},
       {"schedule", false, [&](const JsonPlace& p) { plan.schedule = read_text(p); }},
       {"predicted_ns",
        false,
        [&](const JsonPlace& p) { plan.predicted = {read_integer(p, 0, int64_t{1} << 60)}; }},
       {"left_out", false, [&](const JsonPlace& p) { plan.left_out = read_texts(p); }},
       {"stages", true, [&](const JsonPlace& p) {
          for (const JsonPlace& each : read_list(p)) plan.stages.push_back(read_stage(each));
          if (plan.stages.empty()) p.refuse("at least one stage");
        }}});
  // 1F1B: the number of stages from this one on.
  for (size_t i = 0; i < plan.stages.size(); ++i)
    if (LayerStage& stage = plan.stages[i]; stage.in_flight == 0)
      stage.in_flight = std::min(plan.microbatches, static_cast<int>(plan.stages.size() - i));
  return plan;
}

void verify(const LayerPlan& plan, const TableCosts& costs) {
  const auto check_hash =
      [](const std::string& found, const std::string& expected, std::string_view what) {
        if (!found.empty() && found != expected)
          throw Error(Blame::kCaller,
                      fmt::format("{}_hash: found {}..., of another {}, expected {}...: plan again",
                                  what,
                                  found.substr(0, 12),
                                  what,
                                  expected.substr(0, 12)));
      };
  check_hash(plan.table_hash, costs.table_hash(), "table");
  check_hash(plan.cluster_hash, costs.cluster_hash(), "cluster");
  for (size_t i = 0; i < plan.stages.size(); ++i) verify_stage(plan, i, costs);
  const size_t last = plan.stages.size() - 1;
  if (plan.stages[last].end != costs.layers())
    refuse(
        last,
        fmt::format("layers: found {} layers, expected {}", plan.stages[last].end, costs.layers()));
  std::vector<int64_t> used(at(costs.pools()));
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerMesh mesh = mesh_of(plan.stages[i], costs);
    const auto pool = at(mesh.pool);
    used[pool] += int64_t{mesh.replicas} * mesh.tensor_parallel;
    if (used[pool] > costs.devices(mesh.pool))
      refuse(i,
             fmt::format("pool: found {} devices of {} up to here, expected at most {}",
                         used[pool],
                         plan.stages[i].pool,
                         costs.devices(mesh.pool)));
  }
}

ScheduleRequest schedule_request(const LayerPlan& plan, const TableCosts& costs) {
  MicrobatchTimes times;
  ScheduleRequest request;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerMesh mesh = mesh_of(plan.stages[i], costs);
    const StageOption option = costs_of(plan, plan.stages[i], costs);
    times.stages.push_back({option.forward, option.backward});
    if (i + 1 < plan.stages.size()) times.boundaries.push_back(boundary_after(plan, i, costs));
    const Bytes left = costs.memory(mesh.pool) - option.persistent - option.transient;
    const int64_t room =
        option.saved.value > 0 ? left.value / option.saved.value : plan.microbatches;
    request.max_in_flight.push_back(
        static_cast<int>(std::clamp<int64_t>(room, 0, plan.microbatches)));
    request.pools.push_back(mesh.pool);
  }
  // A stage is idle while it sends or receives.
  if (costs.table().run.blocking > 0) {
    for (size_t b = 0; b < times.boundaries.size(); ++b)
      for (const size_t stage : {b, b + 1}) {
        times.stages[stage].forward += times.boundaries[b].forward;
        times.stages[stage].backward += times.boundaries[b].backward;
      }
    for (BoundaryTimes& boundary : times.boundaries) boundary = {{}, {}, boundary.latency};
  }
  request.times = equal_microbatches(std::move(times), plan.microbatches);
  return request;
}

LayerStepTimes time_step(const LayerPlan& plan, const TableCosts& costs) {
  return time_step(plan, costs, schedule_request(plan, costs));
}

LayerStepTimes time_step(const LayerPlan& plan,
                         const TableCosts& costs,
                         const ScheduleRequest& request) {
  std::vector<int> counts;
  for (const LayerStage& stage : plan.stages) counts.push_back(stage.in_flight);
  const Timing timing = time_calls(order_calls(counts, plan.microbatches), request.times);
  LayerStepTimes report;
  report.bubble = timing.bubble();
  for (size_t i = 0; i + 1 < plan.stages.size(); ++i)
    report.boundaries.push_back(boundary_after(plan, i, costs));
  // All stages with the tied tensor update it together.
  Nanoseconds tied_ready;
  const LayerStage* first_tied = nullptr;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const LayerStage& stage = plan.stages[i];
    if (!costs.has_tied(stage.begin, stage.end)) continue;
    tied_ready = std::max(tied_ready, timing.calls[i].back().end);
    if (first_tied)
      report.tied += costs.add_tied(mesh_of(*first_tied, costs), mesh_of(stage, costs));
    else
      first_tied = &stage;
  }
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    LayerStageTimes stage;
    stage.mesh = mesh_of(plan.stages[i], costs);
    stage.costs = costs_of(plan, plan.stages[i], costs);
    stage.busy = timing.busy[i];
    stage.idle = timing.idle[i];
    const bool waits =
        report.tied.value > 0 && costs.has_tied(plan.stages[i].begin, plan.stages[i].end);
    stage.finish =
        (waits ? tied_ready + report.tied : timing.calls[i].back().end) + stage.costs.update;
    stage.used = stage.costs.persistent + stage.costs.transient +
                 stage.costs.saved * std::min(plan.microbatches, plan.stages[i].in_flight);
    stage.has = costs.memory(stage.mesh.pool);
    report.step = std::max(report.step, stage.finish);
    report.stages.push_back(stage);
  }
  return report;
}

}  // namespace medley
