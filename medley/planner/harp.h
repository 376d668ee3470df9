#pragma once

// Pipelines over unlike pools (HARP, https://arxiv.org/abs/2509.24859): where the layers of a model
// are cut, which devices of which pool each stage gets, in which order the pools follow each other,
// and how many micro-batches there are.
//
//   graph ──layers──▶ stage options (stage_options.h) ──▶ chains (pipeline.h) ──▶ a few candidates
//     candidates: stages synthesised as a whole, counts in flight (schedule/h1f1b.h), lowered,
//     priced by the simulator; then cuts are moved while that helps
//
// Every stage is on devices of one pool, as many as divide a node well or whole nodes. Devices may
// be left idle.

#include "medley/synthesis/request.h"

namespace medley {

// Requires: `request` has costs and an analysis.
Outcome harp(const Request& request);

}  // namespace medley
