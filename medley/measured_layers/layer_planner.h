#pragma once

// Plans a pipeline from a layer table and a cluster, or returns the reason why none exists.
// Measured options go to plan_pipeline(), and the exact timer selects among its candidates. Knows
// nothing of files.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "medley/measured_layers/layer_plan.h"

namespace medley {

struct LayerRequest {
  const TableCosts& costs;
  int64_t global_batch = 0;
  int64_t microbatches = 0;  // 0: any number that divides the batch
};

struct LayerOutcome {
  LayerPlan plan;
  LayerStepTimes report;
};

// Returns the best pipeline: any layers on any devices, pools in any order, one pool per stage. The
// cost of a cut depends on the devices on both sides, which plan_pipeline() does not know. It
// therefore plans once per power of two, a lower limit on each stage's devices, and the timer uses
// the actual devices. Throws Error(kCaller) for a batch below 1, or micro-batches that do not
// divide it.
[[nodiscard]] std::variant<LayerOutcome, Infeasible> plan_layers(const LayerRequest& request);

// Returns the best grid: stages with as equal numbers of layers as possible, equal devices and one
// degree, pools in cluster order, 1F1B. It is the baseline that ignores heterogeneity.
[[nodiscard]] std::variant<LayerOutcome, Infeasible> plan_grid(const LayerRequest& request);

// Unused devices of a pool, with the reason: no times, no network, or no need.
struct LeftOut {
  std::string pool;
  int devices = 0;
  std::string why;
  bool operator==(const LeftOut&) const = default;
};
std::string to_string(const LeftOut& pool);  // "2 of t4: the table has no times of T4-16GB"
std::vector<LeftOut> left_out(const LayerPlan& plan, const TableCosts& costs);
// Returns the devices that no plan can use.
std::vector<LeftOut> left_out(const TableCosts& costs);

// Sets the in-flight counts of a schedule of schedules.h, within memory, and executes the step.
// Infeasible if one micro-batch does not fit.
[[nodiscard]] std::variant<LayerOutcome, Infeasible> scheduled(LayerPlan plan,
                                                               std::string_view schedule,
                                                               const TableCosts& costs);

}  // namespace medley
