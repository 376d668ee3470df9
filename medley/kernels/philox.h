#pragma once

// Random numbers as a function of the seed, the step, the drawing site and a counter: Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). Knows nothing of their
// use.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace medley {

struct PhiloxKey {
  uint32_t low, high;
  uint32_t step_low, step_high;
};

// Returns the key (low(seed) ^ site, high(seed)). `rng`: i64 [2], the seed and the step.
PhiloxKey philox_key(const at::Tensor& rng, int64_t site);

// Returns the four words of counter (low(block), high(block), low(step), high(step)).
std::array<uint32_t, 4> philox(const PhiloxKey& key, uint64_t block);

// Returns words by tensor arithmetic on 64-bit integers, for devices without our own kernel.
// Requires: `rng` and `block` are on one device.
std::array<at::Tensor, 4> philox(const at::Tensor& rng, int64_t site, const at::Tensor& block);

}  // namespace medley
