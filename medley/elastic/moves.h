#pragma once

// How the state of a run gets from where it is to where another plan wants it: every box of every
// value from the device's own memory, else from a device that has it. Knows no tensors, and not why
// the plan has changed.
//
//   before   a [0, 6)   b [0, 6)   c [6, 12)        b is lost
//   after    a [0, 4)              c [4, 12)
//   moves    a <- a [0, 4)         c <- a [4, 6), c <- c [6, 12)

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/boxes/runs.h"
#include "medley/checkpoint/held_values.h"
#include "medley/elastic/byte_time.h"
#include "medley/elastic/second_homes.h"
#include "medley/program/program.h"

namespace medley {

// Devices of the cluster that have the state which a program gives them, and what they keep for
// others. Null: they have none, or keep nothing.
struct Holders {
  const Program* program = nullptr;
  std::vector<int> devices;
  const SecondHomes* homes = nullptr;
};

// Bytes that one device gives and another takes, or the same one.
struct Move {
  int value = 0;  // into Moves::values
  int from = 0, to = 0;
  int home = -1;        // into SecondHomes::homes, if `from` only keeps it for others
  Runs in_from, in_to;  // of their shards, in bytes
  int64_t bytes() const { return in_to.total(); }
  bool operator==(const Move&) const = default;
};

struct Moves {
  std::vector<HeldValue> values;  // of the program after
  std::vector<Move> moves;  // by value, then by place in it; apart, together all that is wanted
  // What nobody has: "state "exp_avg:w": [0, 4) x [0, 2)". A loss scale is no loss: a plan that has
  // none before starts from its first.
  std::vector<std::string> lost;
};

// Of several devices that have the same, one gives it such that the one who has most to send or to
// receive is done early. All who ask with the same arguments find the same. Requires: a device is
// in at most one of `before` that have a program, and of those that have homes. Throws
// Error(kCaller) where no factors fit the cuts of both plans.
// Leaves out the values `without`, by kind and name.
Moves moves_between(
    const std::vector<Holders>& before,
    const Program& after,
    const ByteTime& byte_time = [](int, int) { return 1.0; },
    const std::set<std::pair<std::string, std::string>>& without = {});

}  // namespace medley
