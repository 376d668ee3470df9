#pragma once

// What frameworks for equal devices do: the devices in the order of the cluster, cut into as many
// equal stages as suits best, the layers into as many equal runs, and in every stage data
// parallelism, tensor parallelism inside nodes, or one over the other (tp x pp x dp, Megatron-LM,
// https://arxiv.org/abs/2104.04473), with equal shares; stages that lack memory compute blocks or
// all of the forward phase again. The best of all these grids by the simulator. A baseline.

#include "medley/synthesis/request.h"

namespace medley {

// Requires: `request` has costs and an analysis.
Outcome megatron(const Request& request);

}  // namespace medley
