#pragma once

// The symbols of a local graph, and their values for a device and a micro-batch. Symbol 0 is "b",
// the rows of the micro-batch, as in the original graph. A device is one table of all values.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "medley/boxes/box.h"
#include "medley/graph/size.h"
#include "medley/sharding/parts.h"
#include "medley/sharding/placement.h"

namespace medley {

class SymbolTable {
 public:
  SymbolTable() = default;
  // Requires: parts as in Assignment, a 1-D or 2-D mesh, row-major.
  SymbolTable(std::vector<Part> parts, std::vector<int64_t> mesh);

  // The division of a dim over a stage's devices, all axes together: axis 0 by the part, and each
  // of its pieces evenly over the `inner` devices of axis 1. `rows`: the planned micro-batches as
  // divided there; empty unless the part is "rows". Returns the index of a part for Cut, the same
  // for equal divisions.
  struct RemoteDivision {
    Part part;
    int devices = 0;  // on axis 0
    std::vector<Microbatch> rows;
    int inner = 1;
    int count() const { return devices * inner; }
    bool operator==(const RemoteDivision&) const = default;
  };
  int elsewhere(const RemoteDivision& division);

  static Size rows() { return Size::of(0); }   // in the micro-batch
  static Size batch() { return Size::of(1); }  // global batch
  // Returns the micro-batch's first row in the global batch.
  static Size first_row() { return Size::of(2); }
  static Size me(int axis) { return Size::of(kMe + axis); }  // this device's index on an axis

  // Returns the length of this device's shard of the factor at a position with `full` elements.
  Size length(const Placement& placement, int position, const Size& full);
  Size offset(const Placement& placement, int position, const Size& full);  // its start
  // Returns the part of a factor's interval in this device's shard: its length, and its start in
  // the factor and in the shard. If empty, the start is within the bounds of both.
  Size length_within(const Placement& placement,
                     int position,
                     const Size& full,
                     const IndexInterval& interval);
  Size begin_within(const Placement& placement,
                    int position,
                    const Size& full,
                    const IndexInterval& interval);
  Size start_within(const Placement& placement,
                    int position,
                    const Size& full,
                    const IndexInterval& interval);
  // Returns the start in the global batch, for the batch factor.
  Size row(const Placement& placement, int position, const Size& full);
  // Returns the length on the device of this index on an axis, out of `full` elements.
  Size length_of(int axis, int part, const Size& full, int device);
  // Returns the common elements of one device's shard under `from` and another's under `to`: the
  // elements sent to / received from `device`, on an axis or, under a division of all of them, of
  // the mesh. Either divides a dim of `whole` elements as a factor of `full`, the outermost of the
  // dim.
  struct Cut {
    int part;
    Size full;
  };
  Size sent(int axis, const Cut& from, const Cut& to, const Size& whole, int device);
  Size received(int axis, const Cut& from, const Cut& to, const Size& whole, int device);

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<Part>& parts() const { return parts_; }
  // Returns the symbols that are lengths of this device's shards under a part, with their wholes.
  std::vector<std::pair<Symbol, Size>> lengths_under(int part) const;
  // Sets other lengths or shares of the same parts, for the same symbols.
  void set_parts(std::vector<Part> parts);
  // Returns the values of all symbols: one table per device, or that of one. `number`: of the
  // micro-batch in its pipeline.
  std::vector<int64_t> table(const Microbatch& microbatch,
                             size_t number,
                             int64_t first_row,
                             int64_t global_batch,
                             int device) const;
  std::vector<std::vector<int64_t>> tables(const Microbatch& microbatch,
                                           size_t number,
                                           int64_t first_row,
                                           int64_t global_batch) const;

 private:
  static constexpr int kMe = 3;  // followed by one per axis
  enum class Kind {
    kLength,
    kOffset,
    kRow,
    kLengthOf,
    kSent,
    kReceived,
    kLengthWithin,
    kBeginWithin,
    kStartWithin
  };
  struct Entry {
    Kind kind;
    int axis = 0, part = -1;
    Size full{};
    int inner = -1;   // offsets and intervals: the division of this device's piece on axis 1
    int device = -1;  // on the axis; default: this one
    int other = -1;   // for messages: the part at the other end,
    Size other_full{}, whole{};  // its divided elements, and those of the dim
    IndexInterval within{};
    auto operator<=>(const Entry&) const = default;
  };
  // A part's division of a factor: elements of each device, and their starts.
  struct Division {
    std::vector<int64_t> lengths, starts;
  };
  static Entry exchanged(
      Kind kind, int axis, const Cut& from, const Cut& to, const Size& whole, int device);
  Size intern(const Entry& entry, const char* what);
  // Returns false on an axis of one device, so that sizes do not depend on its nominal cut.
  bool is_cut(const Placement& placement, size_t axis, int position) const;
  using Divisions = std::map<std::tuple<int, int, int64_t>, Division>;  // by axis, part and size
  struct Rows {  // rows of the global batch of these tables
    const Microbatch& microbatch;
    size_t number;
    int64_t first, global_batch;
  };
  const std::string& part_name(int part) const;
  std::optional<Size> shard(Kind kind,
                            const Placement& placement,
                            int position,
                            const Size& full,
                            const IndexInterval& within = {});
  std::vector<int64_t> lengths_of(int axis, int part, int64_t full, const Rows& rows) const;
  const Division& divide_into(
      int axis, int part, int64_t full, const Rows& rows, Divisions& known) const;
  static IndexInterval piece_of(const Division& division, size_t device, int64_t start);
  static IndexInterval clamped(const IndexInterval& interval, const IndexInterval& bounds);
  std::vector<int64_t> values_of(const Rows& rows, int device, Divisions& known) const;

  std::vector<Part> parts_;
  std::vector<RemoteDivision> elsewhere_;  // parts parts_.size(), ...
  std::vector<int64_t> mesh_;
  std::vector<std::string> names_;
  std::vector<Entry> entries_;  // symbols after those of the device
  std::map<Entry, Symbol> known_;
};

}  // namespace medley
