#pragma once

#include "medley/plan/plan.h"

namespace medley {

// Checks a plan independently of graph and cluster. Throws Error(kCaller) "<place>: found ...,
// expected ..." if rows of micro-batches, of their devices and of the global batch are
// inconsistent.
void verify_rows(const Plan& plan);

}  // namespace medley
