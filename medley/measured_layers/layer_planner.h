#pragma once

// From a layer table and a cluster to a pipeline, or to the sentence why there is none: options for
// plan_pipeline(), which cannot tell that they were measured, and the choice among its candidates
// by the exact timer. Knows nothing of files.

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

// Any layers on any devices of any pool, in any order of pools; a stage lies on one pool. What a
// cut takes depends on how many devices are on both of its sides, which plan_pipeline() does not
// know: it is asked for plans whose stages all have at least so many, for each power of two, and
// the timer judges what it finds by the devices that they have. Throws Error(kCaller) for a batch
// below 1, or micro-batches that do not divide it.
[[nodiscard]] std::variant<LayerOutcome, Infeasible> plan_layers(const LayerRequest& request);

// The best grid: stages of as equal numbers of layers as there can be, all on as many devices with
// one degree, pools in the order of the cluster, scheduled by 1F1B. What one gets who takes unequal
// devices for equal ones.
[[nodiscard]] std::variant<LayerOutcome, Infeasible> plan_grid(const LayerRequest& request);

// Devices that a plan does not use, by pool, and why: no times, no network, or no need.
struct LeftOut {
  std::string pool;
  int devices = 0;
  std::string why;
  bool operator==(const LeftOut&) const = default;
};
std::string to_string(const LeftOut& pool);  // "2 of t4: the table has no times of T4-16GB"
std::vector<LeftOut> left_out(const LayerPlan& plan, const TableCosts& costs);
// Those that no plan can use.
std::vector<LeftOut> left_out(const TableCosts& costs);

// Sets the counts in flight to those of a schedule of schedules.h, within memory, and executes the
// step. Infeasible if memory has no room for one micro-batch.
[[nodiscard]] std::variant<LayerOutcome, Infeasible> scheduled(LayerPlan plan,
                                                               std::string_view schedule,
                                                               const TableCosts& costs);

}  // namespace medley
