#include "medley/kernels/places.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "medley/base/error.h"

namespace medley {

Runs runs_of(at::IntArrayRef sizes, at::IntArrayRef origin, at::IntArrayRef full) {
  MEDLEY_CHECK_EQ(sizes.size(), full.size());
  MEDLEY_CHECK_EQ(origin.size(), full.size());
  Box box;
  for (size_t i = 0; i < full.size(); ++i) box.push_back({origin[i], origin[i] + sizes[i]});
  return runs_of(full.vec(), box);
}

at::Tensor places_of(const Runs& runs, const at::TensorOptions& options) {
  const auto integers = options.dtype(at::kLong);
  at::Tensor places = at::arange(runs.length, integers) + runs.start;
  for (size_t i = runs.counts.size(); i-- > 0;) {
    const at::Tensor starts = at::arange(runs.counts[i], integers) * runs.strides[i];
    places = (starts.unsqueeze(1) + places.unsqueeze(0)).reshape({-1});
  }
  return places;
}

}  // namespace medley
