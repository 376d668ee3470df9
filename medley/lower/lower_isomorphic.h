#pragma once

// Programs of one model and one plan with different sizes, for instance of shorter sequences. They
// run with the same state on the same devices, step by step.

#include "medley/lower/lower.h"

namespace medley {

// Lowers a graph of the model at other sizes with the decisions of the planned one. Throws
// Error(kCaller) if the two graphs, or their programs, differ in more than sizes.
Program lower_isomorphic(const Graph& planned,
                         const Graph& other,
                         const Plan& plan,
                         const Cluster& cluster,
                         const Optimizer& optimizer,
                         const LowerOptions& options = {});

// Throws Error(kCaller) naming the first place in which two programs differ in more than sizes.
void require_isomorphic(const Program& planned, const Program& other);

}  // namespace medley
