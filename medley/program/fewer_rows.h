#pragma once

// The program of a batch of fewer rows than the plan is for, such as the last one of an epoch: the
// same ops, calls and communications; of every micro-batch as of every device a part that is in
// proportion to the planned one, down to none.

#include "medley/program/program.h"

namespace medley {

// No device has more rows than planned in any micro-batch. Requires: 0 < rows <= those planned.
// Throws Error(kCaller) where micro-batches are batches and one of them would have no row.
Program with_rows(const Program& planned, int64_t rows);

}  // namespace medley
