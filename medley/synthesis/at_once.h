#pragma once

// Several micro-batches of a mesh at once (program/call_parts.h), for plans whose devices stand
// still for exchanges inside of the mesh: of experts' tokens, of parts of tensors.

#include "medley/synthesis/request.h"

namespace medley {

// Returns the plan, or one of the same decisions with two micro-batches at once that is faster by
// the simulator and fits: as many micro-batches or more, which make room for two in flight and
// leave less to fill and to drain, and on a mesh of one axis rows and shares to suit
// (ratio_problem.h). Requires: costs and an analysis in the request; a plan of one stage that fits,
// and its program.
Plan at_once_if_faster(const Request& request, const Plan& plan, Program program);

}  // namespace medley
