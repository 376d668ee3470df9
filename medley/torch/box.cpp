#include "medley/torch/box.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "medley/base/error.h"

namespace medley {

int64_t Box::row_start(int64_t row) const {
  int64_t place = start;
  for (size_t i = sizes.size(); i-- > 0;) {
    place += (row % sizes[i]) * strides[i];
    row /= sizes[i];
  }
  return place;
}

Box make_box(at::IntArrayRef sizes, at::IntArrayRef origin, at::IntArrayRef full) {
  MEDLEY_CHECK_EQ(sizes.size(), full.size());
  MEDLEY_CHECK_EQ(origin.size(), full.size());
  Box box;
  int64_t stride = 1;
  bool merging = true;
  for (size_t i = full.size(); i-- > 0;) {
    MEDLEY_CHECK(origin[i] >= 0 && sizes[i] >= 0 && origin[i] + sizes[i] <= full[i]);
    box.start += origin[i] * stride;
    if (merging) {
      box.run *= sizes[i];
      merging = sizes[i] == full[i];
    } else {
      box.sizes.insert(box.sizes.begin(), sizes[i]);
      box.strides.insert(box.strides.begin(), stride);
      box.rows *= sizes[i];
    }
    stride *= full[i];
  }
  return box;
}

at::Tensor box_places(const Box& box, const at::TensorOptions& options) {
  const auto integers = options.dtype(at::kLong);
  at::Tensor places = at::arange(box.run, integers) + box.start;
  for (size_t i = box.sizes.size(); i-- > 0;) {
    const at::Tensor starts = at::arange(box.sizes[i], integers) * box.strides[i];
    places = (starts.unsqueeze(1) + places.unsqueeze(0)).reshape({-1});
  }
  return places;
}

}  // namespace medley
