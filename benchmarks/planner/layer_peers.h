#pragma once

// Plans over measured layers by other rules than ours, judged by the same timer on the same tables.
// Where a rule leaves something open, it gets what is best for it.

#include <cstdint>
#include <string>

#include "medley/measured_layers/layer_planner.h"

namespace medley {

struct PeerResult {
  Nanoseconds step{INT64_MAX};
  std::string what = "nothing fits";
  int64_t seen = 0, timed = 0;  // chains of stages; those whose lower bound did not rule them out
};

// All chains of up to `most_stages` stages, each on one kind, all with the same number of replicas
// and any degree of its own; any layers, kinds in any order, each micro-batch of as many rows as
// were measured. Stages under H-1F1B.
PeerResult equal_replicas(const TableCosts& costs, int64_t global_batch, int most_stages);

// Sailor's rules (https://arxiv.org/abs/2504.17096) as we understand them: layers are
// divided evenly over the stages; a kind has in each stage the least degree with which it fits into
// memory; all replicas have the same rows; a stage may have replicas of several kinds, and takes as
// long as the slowest of them. For its good: gradients of a mixed stage are added up as fast as
// those of its fastest kind, transfers take as long as between the kinds of a stage that are
// nearest, and its schedule is H-1F1B.
PeerResult sailor_rules(const TableCosts& costs, int64_t global_batch, int most_stages);

}  // namespace medley
