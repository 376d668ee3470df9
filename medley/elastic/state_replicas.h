#pragma once

// State replicas: each box that one failure would destroy has a copy in the memory of a device that
// does not fail together with its holders.
//
//   node 0   stage 0: w [0, 6)   kept for node 1: v [0, 4)
//   node 1   stage 1: v [0, 4)   kept for node 0: w [0, 6)
//
// Equal arguments give equal results in all processes. Knows no tensors, and not when copies are
// made.

#include <vector>

#include "medley/boxes/runs.h"
#include "medley/checkpoint/held_values.h"
#include "medley/cluster/cluster.h"
#include "medley/elastic/byte_time.h"
#include "medley/program/program.h"

namespace medley {

struct StateReplica {
  int value = 0;        // into StateReplicas::values
  FactorSizes factors;  // the box's factors
  Box box;              // stored as a row-major tensor of its own
  int from = 0, to = 0;
  Runs in_from;  // runs in the shard of `from`, in bytes
  int64_t bytes() const { return in_from.total(); }
};

struct StateReplicas {
  std::vector<HeldValue> values;       // for the program
  std::vector<StateReplica> replicas;  // by value, then by place in it
  int64_t without = 0;                 // bytes without room for a replica
};

// The devices as places for replicas.
struct Neighbourhood {
  // [tier][device of the cluster]: devices of one number fail together; the widest tier first. If
  // there is no room outside of a wide domain, a narrower one is used.
  std::vector<std::vector<int>> domains;
  std::vector<int64_t> room;  // [device] bytes; below 0: none for its own copy
  ByteTime byte_time = [](int, int) { return 1.0; };
};

// Returns the failure domains of a program's devices: nodes and revocable pools, or each device if
// there is one node. Room excludes the program's needs and a copy of the device's own state. Byte
// times follow the links.
Neighbourhood neighbourhood_of(const Program& program, const Cluster& cluster);

// Assigns the largest box first, each to the device that is done earliest; nearly full devices
// count as slow. If any device has no room for a copy of its own state, there are no replicas.
StateReplicas state_replicas(const Program& program, const Neighbourhood& places);

}  // namespace medley
