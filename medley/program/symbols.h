#pragma once

// The symbols of a local graph and how a device and a micro-batch give them values. Symbol 0 is
// "b", the rows of the micro-batch, as in the graph that is lowered; a device is one table of all
// values.

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "medley/graph/size.h"
#include "medley/plan/plan.h"

namespace medley {

class SymbolTable {
 public:
  SymbolTable() = default;
  // Requires: parts as in Assignment, one axis of `devices` devices.
  SymbolTable(std::vector<Part> parts, int devices);

  // How another stage divides something over its devices. `rows`: the lengths of the part "rows"
  // there, by the first row of a micro-batch; empty for other parts. Returns the index of a part
  // that may stand wherever one does below; the same for the same division.
  struct Elsewhere {
    Part part;
    int devices = 0;
    std::map<int64_t, std::vector<int64_t>> rows;
    bool operator==(const Elsewhere&) const = default;
  };
  int elsewhere(const Elsewhere& division);

  static Size rows() { return Size::of(0); }       // of the micro-batch
  static Size batch() { return Size::of(1); }      // rows of the global batch
  static Size first_row() { return Size::of(2); }  // of the micro-batch in the global batch
  static Size me() { return Size::of(3); }         // this device's index on the axis

  Size length(int part, const Size& full);  // of this device's shard
  Size offset(int part, const Size& full);  // where it starts
  Size row(int part, const Size& full);     // for the batch: where it starts in the global batch
  Size length_of(int part, const Size& full, int device);
  // Elements common to the shard of one device under `from` and of another under `to`: what is sent
  // to / received from `device`. Of a dim of `whole` elements that either divides as a factor of
  // `full`, the outermost of the dim.
  struct Cut {
    int part;
    Size full;
  };
  Size sent(const Cut& from, const Cut& to, const Size& whole, int device);
  Size received(const Cut& from, const Cut& to, const Size& whole, int device);

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<Part>& parts() const { return parts_; }
  // The symbols that are lengths of this device's shards under a part, with the whole of each.
  std::vector<std::pair<Symbol, Size>> lengths_under(int part) const;
  // The same symbols for other lengths or shares of the same parts.
  void set_parts(std::vector<Part> parts);
  // Returns the values of all symbols: one table per device, or that of one only.
  std::vector<int64_t> table(const Microbatch& microbatch,
                             int64_t first_row,
                             int64_t global_batch,
                             int device) const;
  std::vector<std::vector<int64_t>> tables(const Microbatch& microbatch,
                                           int64_t first_row,
                                           int64_t global_batch) const;

 private:
  enum class Kind { kLength, kOffset, kRow, kLengthOf, kSent, kReceived };
  struct Entry {
    Kind kind;
    int part, other;
    Size full;
    int device;
    Size other_full{}, whole{};  // of what is sent or received
    auto operator<=>(const Entry&) const = default;
  };
  // How a part divides a factor: elements of each device, and where they start.
  struct Division {
    std::vector<int64_t> lengths, starts;
  };
  Size intern(const Entry& entry, const char* what);
  using Divisions = std::map<std::pair<int, int64_t>, Division>;  // by part and size
  struct Rows {  // of the global batch that the tables are for
    const Microbatch& microbatch;
    int64_t first, global_batch;
  };
  const std::string& part_name(int part) const;
  std::vector<int64_t> lengths_of(int part, int64_t full, const Rows& rows) const;
  const Division& divide_into(int part, int64_t full, const Rows& rows, Divisions& known) const;
  std::vector<int64_t> values_of(const Rows& rows, int device, Divisions& known) const;

  std::vector<Part> parts_;
  std::vector<Elsewhere> elsewhere_;  // parts parts_.size(), ...
  int devices_ = 0;
  std::vector<std::string> names_;
  std::vector<Entry> entries_;  // of symbols 4, 5, ...
  std::map<Entry, Symbol> known_;
};

}  // namespace medley
