#pragma once

// A pipeline over the layers of a table: which layers on which devices, and how the batch is cut.
// What a plan (plan/plan.h) is for a graph. Stored as JSON (docs/formats/layers.md).

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
  // Micro-batches at most, not growing along the pipeline. A file that does not say: those of 1F1B.
  int in_flight = 1;
  bool operator==(const LayerStage&) const = default;
};

struct LayerPlan {
  std::string table_hash, cluster_hash;  // "" in a plan written by hand: not checked
  int64_t global_batch = 0;
  int microbatches = 1;  // of equal rows
  std::string schedule;  // for people: the order follows from the counts in flight
  std::vector<LayerStage> stages;
  Nanoseconds predicted;              // by whoever planned; 0: nobody
  std::vector<std::string> left_out;  // for people: devices that fall away, each with the cause
  bool operator==(const LayerPlan&) const = default;
};

// What is printed parses back equal.
std::string print(const LayerPlan& plan);
// Whether the text says that it is one, whatever else is wrong with it.
bool is_layer_plan(std::string_view json);
// Strict. Throws Error(kCaller) "<file>: <place>: found ..., expected ...".
LayerPlan parse_layer_plan(std::string_view json, std::string_view file);
// Throws Error(kCaller) "<place>: found ..., expected ..." with the first reason why the plan is
// none for this table and cluster. Whether it fits into memory is not asked.
void verify(const LayerPlan& plan, const TableCosts& costs);

struct LayerStageTimes {
  LayerMesh mesh;
  StageOption costs;
  Nanoseconds busy, idle;  // until all stages have ended their calls
  Nanoseconds finish;      // of the update
  Bytes used, has;
};
struct LayerStepTimes {
  Nanoseconds step;
  double bubble = 0;  // idle time of the stages, as a share of their time until the last call
  Nanoseconds tied;   // adding up the gradients of a tensor that several stages have
  std::vector<LayerStageTimes> stages;
  std::vector<BoundaryTimes> boundaries;  // of RunConstants::blocking: how long both stand still
};
// Executes a step with the exact timer: calls, transfers, then each stage's update, which begins
// when its last call has ended. Requires: verify(plan, costs) passes.
LayerStepTimes time_step(const LayerPlan& plan, const TableCosts& costs);

// The times of a plan's stages and boundaries, for schedules: room is that of memory. Whatever
// in_flight is, they are the same.
// Requires: verify(plan, costs) passes but for in_flight.
ScheduleRequest schedule_request(const LayerPlan& plan, const TableCosts& costs);
// For those who have it: `request` is schedule_request(plan, costs).
LayerStepTimes time_step(const LayerPlan& plan,
                         const TableCosts& costs,
                         const ScheduleRequest& request);

}  // namespace medley
