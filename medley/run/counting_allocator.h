#pragma once

// Counts the bytes of CPU tensors: live now and at most. For benchmarks and tests.

#include <cstdint>

namespace medley {

// From now on all CPU tensors are counted; those made before are not.
void count_allocations();

struct AllocatedBytes {
  int64_t live = 0;
  int64_t peak = 0;  // since the last reset_peak()
};
AllocatedBytes allocated_bytes();
void reset_peak();

}  // namespace medley
