#pragma once

// How the stages of a pipeline hang together: what goes from which to which, and in what order they
// call their functions. Knows nothing of ops.

#include <map>
#include <vector>

#include "medley/program/crossing.h"
#include "medley/program/lower.h"
#include "medley/schedule/call_order.h"

namespace medley {

// One stage, decided but not yet lowered.
struct DecidedStage {
  Completed completed;
  std::vector<Microbatch> microbatches;   // with the stage's own lengths
  std::vector<int> devices;               // of the cluster, row-major over the mesh
  std::vector<int64_t> mesh;              // sizes of its axes
  bool microbatches_are_batches = false;  // as of a Program
};

// What a stage has to know of the others.
struct Connections {
  std::vector<std::pair<ValueId, Crossing>> receives;  // in the order in which they are sent
  std::multimap<ValueId, Crossing> sends;
  std::vector<int> norm_devices;  // of all stages that have gradients; empty: it has the only ones
  std::vector<int> all_devices;   // of all stages; empty: there is one
  DType loss = DType::kF32;
  StageOrder order;
};

// Micro-batches that each stage has in flight at most.
std::vector<int> counts_in_flight(const Pipeline& pipeline);

// Requires: what a stage receives under a name one stage sends.
std::vector<Connections> connect(const std::vector<DecidedStage>& stages, const Pipeline& pipeline);

// One stage whose neighbours are one imaginary device that has everything whole. A lane for each
// phase and direction, with room for two micro-batches.
Connections connect_alone(const DecidedStage& stage);

}  // namespace medley
