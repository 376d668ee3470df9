#pragma once

// Which rows of the global batch a device needs, as the program has placed the inputs of its stage.

#include <optional>
#include <vector>

#include "medley/program/program.h"

namespace medley {

struct Rows {  // of the global batch
  int64_t first = 0, count = 0;
  bool operator==(const Rows&) const = default;
};

// The dim of a batch tensor that has the rows.
struct RowDim {
  int dim;           // of the tensor
  int position;      // of their factor, counted over all dims; kNone: it is never cut
  int64_t elements;  // of the dim per row
};

// The first dim whose size is a multiple of the rows; nothing if there is none. Requires: rows are
// the leading factor of their dim.
std::optional<RowDim> row_dim(const Placement& placement);

// Whether a cut is one of the rows: then rows_of() has it.
bool cuts_rows(const Placement& placement, const Placement::Cut& cut);

// The rows of a micro-batch, by the table of any device.
Rows rows_of_microbatch(const std::vector<int64_t>& table);

// What one input reads of a micro-batch; nothing if it has no rows. `device` is an index into the
// stage's mesh.
std::optional<Rows> rows_of(const LoweredStage& stage,
                            const Placement& input,
                            int device,
                            size_t microbatch);

// By micro-batch the fewest rows that lie together and have all that any batch input of the device
// reads: none in a stage that reads no batch.
std::vector<Rows> rows_of(const LoweredStage& stage, int device);

}  // namespace medley
