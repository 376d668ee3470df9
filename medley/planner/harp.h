#pragma once

// Plans pipelines over heterogeneous pools (HARP, https://arxiv.org/abs/2509.24859): cuts between
// layers, devices and pool of each stage, order of the pools, and the number of micro-batches.
//
//   graph ──layers──▶ stage options (stage_options.h) ──▶ chains (pipeline.h) ──▶ a few candidates
//     candidates: stages synthesised as a whole, counts in flight (schedule/h1f1b.h), lowered,
//     priced by the simulator; then cuts are moved while that helps
//
// Every stage uses devices of one pool: a divisor of a node or whole nodes. Devices may stay idle.

#include "medley/synthesis/request.h"

namespace medley {

// Requires: `request` has costs and an analysis.
Outcome harp(const Request& request);

}  // namespace medley
