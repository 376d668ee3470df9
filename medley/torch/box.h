#pragma once

// A box inside a row-major tensor, and the places of its elements in the flat tensor. Knows nothing
// of what the elements are.

#include <ATen/core/Tensor.h>

#include <vector>

namespace medley {

// Trailing dims that are whole are merged: the last dim of the box is a run of neighbours in the
// whole tensor.
struct Box {
  std::vector<int64_t> sizes, strides;  // without the run
  int64_t start = 0;                    // place of the first element
  int64_t run = 1;                      // neighbours in the whole tensor
  int64_t rows = 1;                     // number of runs

  int64_t numel() const { return rows * run; }
  // Returns the place of the first element of a run.
  int64_t row_start(int64_t row) const;
};

// Requires: equal ranks and a box inside `full`.
Box make_box(at::IntArrayRef sizes, at::IntArrayRef origin, at::IntArrayRef full);

// Returns the places of all elements, i64 and flat.
at::Tensor box_places(const Box& box, const at::TensorOptions& options);

}  // namespace medley
