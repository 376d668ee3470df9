#pragma once

// Plans several heterogeneous pipelines (AutoHet, https://arxiv.org/abs/2512.20953). Each has its
// own devices, cuts, meshes, micro-batches and rows of a step. Shared layers are summed layer by
// layer (docs/concepts/several_pipelines.md).
//
//   columns    pipelines: the best for each amount of nodes, if there are few amounts, and those
//              found by prices of devices (column_generation.h)
//   divisions  the best sets of columns (divisions.h); these are synthesised and simulated
//   bound      lower bound over all sets of pipelines, reported in the plan
//
// Devices may stay idle.

#include "medley/synthesis/request.h"

namespace medley {

// Returns a plan of at least two pipelines. Without devices, rows or memory for two, returns one
// pipeline as harp does. Requires: `request` has costs, an analysis and `cache.find`.
Outcome autohet(const Request& request);

}  // namespace medley
