#pragma once

// Runs of a flat tensor (boxes/runs.h) as a view of it.

#include <ATen/core/Tensor.h>

#include <vector>

#include "medley/boxes/runs.h"

namespace medley {

inline at::Tensor strided(const at::Tensor& flat, const Runs& runs) {
  std::vector<int64_t> sizes = runs.counts, strides = runs.strides;
  sizes.push_back(runs.length);
  strides.push_back(1);
  return flat.as_strided(sizes, strides, flat.storage_offset() + runs.start);
}

}  // namespace medley
