#pragma once

// What frameworks for equal devices do: the devices in the order of the cluster, cut into as many
// equal stages as suits best, the layers into as many equal runs, and in every stage either data
// parallelism or tensor parallelism (Megatron-LM, https://arxiv.org/abs/2104.04473), with equal
// shares; stages that lack memory compute blocks or all of the forward phase again. The best of all
// these grids by the simulator. A baseline.
//
// A mesh has one axis in this version: no grid has both kinds of parallelism inside a stage.

#include "medley/planner/planner.h"

namespace medley {

// Requires: `request` has costs and ground.
Outcome megatron(const Request& request);

}  // namespace medley
