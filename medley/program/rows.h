#pragma once

// The rows of the global batch that a device needs, by the placement of its stage's inputs.

#include <optional>
#include <vector>

#include "medley/program/program.h"

namespace medley {

struct Rows {  // an interval of the global batch
  int64_t first = 0, count = 0;
  bool operator==(const Rows&) const = default;
};

// The dim of a batch tensor that contains the rows.
struct RowDim {
  int dim;           // in the tensor
  int position;      // index of the rows' factor over all dims; kNone: never cut
  int64_t elements;  // the dim's elements per row
};

// Returns the first dim whose size is a multiple of the rows, or nothing. Requires: rows are the
// leading factor of their dim.
std::optional<RowDim> row_dim(const PlacedValue& placed);

// Returns whether a cut is one of the rows, as in rows_of().
bool cuts_rows(const PlacedValue& placed, const PlacedValue::Cut& cut);

// Returns the rows of a micro-batch, from the table of any device.
Rows rows_of_microbatch(const std::vector<int64_t>& table);

// Returns the rows that one input reads of a micro-batch, or nothing if it has no rows. `device` is
// an index into the stage's mesh.
std::optional<Rows> rows_of(const LoweredStage& stage,
                            const PlacedValue& input,
                            int device,
                            size_t microbatch);

// Returns by micro-batch the smallest interval of rows with all that the device's batch inputs
// read; empty in a stage without batch inputs.
std::vector<Rows> rows_of(const LoweredStage& stage, int device);

}  // namespace medley
