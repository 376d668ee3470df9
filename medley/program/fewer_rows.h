#pragma once

// The program of a batch with fewer rows than planned, such as the last one of an epoch: the same
// ops, calls and communications. Every micro-batch and device gets a proportional part, possibly
// none.

#include "medley/program/program.h"

namespace medley {

// Returns the program, in which no device has more rows than planned in any micro-batch. Requires:
// 0 < rows <= those planned. Throws Error(kCaller) if micro-batches are batches and one of them
// would have no row.
Program with_rows(const Program& planned, int64_t rows);

}  // namespace medley
