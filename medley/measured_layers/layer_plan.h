#pragma once

// A pipeline over the layers of a table: layers and devices of each stage, and the micro-batches.
// The counterpart of plan/plan.h, stored as JSON (docs/formats/layers.md).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "medley/measured_layers/table_costs.h"
#include "medley/schedule/timer.h"

namespace medley {

struct LayerStage {
  int begin = 0, end = 0;  // layers [begin, end)
  std::string pool;
  int replicas = 1, tensor_parallel = 1;
  // Most micro-batches, never increasing along the pipeline. Default in files: those of 1F1B.
  int in_flight = 1;
  bool operator==(const LayerStage&) const = default;
};

struct LayerPlan {
  std::string table_hash, cluster_hash;  // "" in a plan written by hand: not checked
  int64_t global_batch = 0;
  int microbatches = 1;  // equal rows each
  std::string schedule;  // informative: the counts in flight determine the order
  std::vector<LayerStage> stages;
  Nanoseconds predicted;              // by the planner; 0: unknown
  std::vector<std::string> left_out;  // informative: unused devices, each with the cause
  bool operator==(const LayerPlan&) const = default;
};

// Prints a form that parses back equal.
std::string print(const LayerPlan& plan);
// Returns whether the text claims to be a layer plan, even an invalid one.
bool is_layer_plan(std::string_view json);
// Rejects unknown fields. Throws Error(kCaller) "<file>: <place>: found ..., expected ...".
LayerPlan parse_layer_plan(std::string_view json, std::string_view file);
// Throws Error(kCaller) "<place>: found ..., expected ..." with the first reason why the plan is
// invalid for this table and cluster. Memory is not checked.
void verify(const LayerPlan& plan, const TableCosts& costs);

struct LayerStageTimes {
  LayerMesh mesh;
  StageOption costs;
  Nanoseconds busy, idle;  // until all stages have ended their calls
  Nanoseconds finish;      // update's end
  Bytes used, has;
};
struct LayerStepTimes {
  Nanoseconds step;
  double bubble = 0;  // idle share of the stages' time until the last call
  Nanoseconds tied;   // time to sum gradients of a tensor shared by stages
  std::vector<LayerStageTimes> stages;
  std::vector<BoundaryTimes> boundaries;  // blocking (RunConstants): time both are idle
};
// Executes a step with the exact timer: calls, transfers, then each stage's update, which begins
// after its last call. Requires: verify(plan, costs) passes.
LayerStepTimes time_step(const LayerPlan& plan, const TableCosts& costs);

// Returns the times of a plan's stages and boundaries for schedules; room is limited by memory
// only. The result is independent of in_flight. Requires: verify(plan, costs) passes but for
// in_flight.
ScheduleRequest schedule_request(const LayerPlan& plan, const TableCosts& costs);
// Overload for a known `request`, which must be schedule_request(plan, costs).
LayerStepTimes time_step(const LayerPlan& plan,
                         const TableCosts& costs,
                         const ScheduleRequest& request);

}  // namespace medley
