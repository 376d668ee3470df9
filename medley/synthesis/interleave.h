#pragma once

// Interleaves micro-batches of a mesh (program/call_parts.h), for plans whose devices are idle in
// exchanges inside the mesh: of experts' tokens, of parts of tensors.

#include "medley/synthesis/request.h"

namespace medley {

// Returns the plan, or one with the same decisions and two interleaved micro-batches that is faster
// by the simulator and fits. It may use more micro-batches, which frees memory for two in flight
// and shortens warm-up and drain; on a 1-D mesh it may change rows and shares (ratio_problem.h).
// Requires: costs and an analysis in the request; a plan of one stage that fits, and its program.
Plan interleave_if_faster(const Request& request, const Plan& plan, Program program);

}  // namespace medley
