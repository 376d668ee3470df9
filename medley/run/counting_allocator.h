#pragma once

// Counts live and peak bytes of CPU tensors, for benchmarks and tests.

#include <cstdint>

namespace medley {

// Counts all CPU tensors from now on; earlier ones are not counted.
void count_allocations();

struct AllocatedBytes {
  int64_t live = 0;
  int64_t peak = 0;  // since the last reset_peak()
};
AllocatedBytes allocated_bytes();
void reset_peak();

}  // namespace medley
