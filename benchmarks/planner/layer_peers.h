#pragma once

// Plans over measured layers by other rules than ours, judged by the same timer on the same tables.
// Choices that a rule leaves open are made in its favour.

#include <cstdint>
#include <string>

#include "medley/measured_layers/layer_planner.h"

namespace medley {

struct PeerResult {
  Nanoseconds step{INT64_MAX};
  std::string what = "nothing fits";
  int64_t seen = 0, timed = 0;  // chains of stages; those not excluded by their lower bound
};

// Searches all chains of up to `most_stages` stages, each on one device type, all with the same
// number of replicas and any degree of its own. Tries any layers, types in any order, and
// micro-batches of any measured number of rows. Stages under H-1F1B.
PeerResult equal_replicas(const TableCosts& costs, int64_t global_batch, int most_stages);

// Searches by our reading of Sailor's rules (https://arxiv.org/abs/2504.17096). Layers are divided
// evenly over the stages. A device type has in each stage the least degree that fits into memory,
// and all replicas have the same rows. A stage may have replicas of several types, and is as slow
// as the slowest. In its favour, gradients of a mixed stage are summed at the speed of its fastest
// type, transfers run between the nearest types of two stages, and its schedule is H-1F1B.
PeerResult sailor_rules(const TableCosts& costs, int64_t global_batch, int most_stages);

}  // namespace medley
