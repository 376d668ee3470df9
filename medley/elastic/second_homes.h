#pragma once

// What of a run's state one failure would take from all, and where each such box lives a second
// time: in the memory of a device that does not fail with those who have it.
//
//   node 0   stage 0: w [0, 6)   kept for node 1: v [0, 4)
//   node 1   stage 1: v [0, 4)   kept for node 0: w [0, 6)
//
// All who ask with the same arguments find the same. Knows no tensors, and not when copies are
// made.

#include <vector>

#include "medley/boxes/runs.h"
#include "medley/checkpoint/held_values.h"
#include "medley/cluster/cluster.h"
#include "medley/elastic/byte_time.h"
#include "medley/program/program.h"

namespace medley {

struct SecondHome {
  int value = 0;        // into SecondHomes::values
  FactorSizes factors;  // of the box
  Box box;              // kept as a row-major tensor of its own
  int from = 0, to = 0;
  Runs in_from;  // of the shard of `from`, in bytes
  int64_t bytes() const { return in_from.total(); }
};

struct SecondHomes {
  std::vector<HeldValue> values;  // of the program
  std::vector<SecondHome> homes;  // by value, then by place in it
  int64_t without = 0;            // bytes for which nobody has room
};

// Devices as others see them who want to keep something there.
struct Neighbourhood {
  // [tier][device of the cluster]: those of one number fail together; the widest tier first. What
  // finds no room outside of a wide domain goes outside of a narrow one.
  std::vector<std::vector<int>> domains;
  std::vector<int64_t> room;  // [device] bytes; below 0: not even for a copy of its own state
  ByteTime byte_time = [](int, int) { return 1.0; };
};

// Of the devices of a program: nodes fail together, and pools that may be taken away; where there
// is one node only, each device by itself. Room is what neither the program needs nor a copy of the
// device's own state. Bytes take what the links give.
Neighbourhood neighbourhood_of(const Program& program, const Cluster& cluster);

// The largest box first, each to whoever is done with it early; a device that fills up counts as a
// slow one. Where somebody has no room for a copy of its own state nothing has a second home.
SecondHomes second_homes(const Program& program, const Neighbourhood& places);

}  // namespace medley
