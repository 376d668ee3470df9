#pragma once

// Plans as frameworks for homogeneous devices do (tp x pp x dp, Megatron-LM,
// https://arxiv.org/abs/2104.04473). Devices in cluster order form equal stages, layers equal runs.
// Each stage uses data parallelism, tensor parallelism inside nodes, or both, with equal shares.
// Stages that lack memory recompute blocks or the whole forward phase. Returns the best grid by the
// simulator, as a baseline.

#include "medley/synthesis/request.h"

namespace medley {

// Requires: `request` has costs and an analysis.
Outcome megatron(const Request& request);

}  // namespace medley
