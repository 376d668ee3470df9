#pragma once

#include "medley/plan/plan.h"

namespace medley {

// What can be wrong with a plan whatever graph and cluster it is for. Throws Error(kCaller)
// "<place>: found ..., expected ..." where rows of micro-batches, of their devices and of the
// global batch do not add up.
void verify_rows(const Plan& plan);

}  // namespace medley
