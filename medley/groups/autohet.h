#pragma once

// Several pipelines that are not alike (AutoHet, https://arxiv.org/abs/2512.20953): each has its
// own devices, cuts, meshes, micro-batches and rows of a step, and what all have of the model they
// sum layer by layer (docs/concepts/several_pipelines.md).
//
//   columns    pipelines: the best for each amount of nodes, where there are few amounts, and those
//              that the prices of devices ask for (column_generation.h)
//   divisions  the best sets of columns (divisions.h); these are synthesised and simulated
//   bound      what no set of pipelines takes less than; the plan says it
//
// Devices may be left idle.

#include "medley/synthesis/request.h"

namespace medley {

// A plan of at least two pipelines; of one, as harp has it, where there are not devices, rows or
// memory for two. Requires: `request` has costs, an analysis and an `answer`.
Outcome autohet(const Request& request);

}  // namespace medley
