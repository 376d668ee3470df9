#pragma once

// The symbols of a local graph and how a device and a micro-batch give them values. Symbol 0 is
// "b", the rows of the micro-batch, as in the graph that is lowered; a device is one table of all
// values.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "medley/boxes/box.h"
#include "medley/graph/size.h"
#include "medley/sharding/parts.h"
#include "medley/sharding/state.h"

namespace medley {

class SymbolTable {
 public:
  SymbolTable() = default;
  // Requires: parts as in Assignment, a mesh of one or two axes, row-major.
  SymbolTable(std::vector<Part> parts, std::vector<int64_t> mesh);

  // How the devices of a stage divide something, all axes together: axis 0 by the part, each of its
  // pieces evenly over the `inner` devices of axis 1. `rows`: the planned micro-batches as they
  // are divided there; empty unless the part is "rows". Returns the index of a part for Cut;
  // the same for the same division.
  struct RemoteDivision {
    Part part;
    int devices = 0;  // of axis 0
    std::vector<Microbatch> rows;
    int inner = 1;
    int count() const { return devices * inner; }
    bool operator==(const RemoteDivision&) const = default;
  };
  int elsewhere(const RemoteDivision& division);

  static Size rows() { return Size::of(0); }       // of the micro-batch
  static Size batch() { return Size::of(1); }      // rows of the global batch
  static Size first_row() { return Size::of(2); }  // of the micro-batch in the global batch
  static Size me(int axis) { return Size::of(kMe + axis); }  // this device's index on an axis

  // Length of this device's shard of the factor at a position, which has `full` elements.
  Size length(const State& state, int position, const Size& full);
  Size offset(const State& state, int position, const Size& full);  // where it starts
  // Of an interval of the factor: what this device's shard has of it, where that begins in the
  // factor, and where in the shard; of nothing, within the bounds of both.
  Size length_within(const State& state,
                     int position,
                     const Size& full,
                     const IndexInterval& interval);
  Size begin_within(const State& state,
                    int position,
                    const Size& full,
                    const IndexInterval& interval);
  Size start_within(const State& state,
                    int position,
                    const Size& full,
                    const IndexInterval& interval);
  // For the batch: where it starts in the global batch.
  Size row(const State& state, int position, const Size& full);
  // What the device of this index on an axis has of `full` elements.
  Size length_of(int axis, int part, const Size& full, int device);
  // Elements common to the shard of one device under `from` and of another under `to`: what is sent
  // to / received from `device`, on an axis or, under a division of all of them, of the mesh. Of a
  // dim of `whole` elements that either divides as a factor of `full`, the outermost of the dim.
  struct Cut {
    int part;
    Size full;
  };
  Size sent(int axis, const Cut& from, const Cut& to, const Size& whole, int device);
  Size received(int axis, const Cut& from, const Cut& to, const Size& whole, int device);

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<Part>& parts() const { return parts_; }
  // The symbols that are lengths of this device's shards under a part, with the whole of each.
  std::vector<std::pair<Symbol, Size>> lengths_under(int part) const;
  // The same symbols for other lengths or shares of the same parts.
  void set_parts(std::vector<Part> parts);
  // Returns the values of all symbols: one table per device, or that of one only.
  // `number`: of the micro-batch in its pipeline.
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
  static constexpr int kMe = 3;  // and what follows: one for each axis
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
    int inner = -1;              // of an offset, and within an interval: how axis 1 divides this
                                 // device's piece of axis 0
    int device = -1;             // of the axis, unless it is this one
    int other = -1;              // of what is sent or received: the part at the other end,
    Size other_full{}, whole{};  // what that divides, and the elements of the dim
    IndexInterval within{};
    auto operator<=>(const Entry&) const = default;
  };
  // How a part divides a factor: elements of each device, and where they start.
  struct Division {
    std::vector<int64_t> lengths, starts;
  };
  static Entry exchanged(
      Kind kind, int axis, const Cut& from, const Cut& to, const Size& whole, int device);
  Size intern(const Entry& entry, const char* what);
  // An axis of one device cuts nothing, so sizes there do not depend on who says that it does.
  bool is_cut(const State& state, size_t axis, int position) const;
  using Divisions = std::map<std::tuple<int, int, int64_t>, Division>;  // by axis, part and size
  struct Rows {  // of the global batch that the tables are for
    const Microbatch& microbatch;
    size_t number;
    int64_t first, global_batch;
  };
  const std::string& part_name(int part) const;
  std::optional<Size> shard(Kind kind,
                            const State& state,
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
  std::vector<Entry> entries_;  // of the symbols after those of the device
  std::map<Entry, Symbol> known_;
};

}  // namespace medley
