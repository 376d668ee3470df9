#pragma once

// Programs of one model and one plan that differ in sizes only, those of a batch of shorter
// sequences for instance: they are run with the same state, on the same devices, step by step.

#include "medley/lower/lower.h"

namespace medley {

// Lowers a graph of the model at other sizes as `plan` says of the planned one; what the plan
// leaves open is decided as it is there. Throws Error(kCaller) where the two graphs, or what
// becomes of them, differ in more than sizes.
Program lower_alike(const Graph& planned,
                    const Graph& other,
                    const Plan& plan,
                    const Cluster& cluster,
                    const Optimizer& optimizer,
                    const LowerOptions& options = {});

// Throws Error(kCaller) naming the first place where two programs differ in more than sizes.
void require_alike(const Program& planned, const Program& other);

}  // namespace medley
