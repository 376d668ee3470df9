#pragma once

// The reshard of a run's state to another plan: every box of every value from the device's own
// memory if possible, else from another device. Knows no tensors, and not why the plan has changed.
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
#include "medley/elastic/state_replicas.h"
#include "medley/program/program.h"

namespace medley {

// Devices of the cluster with the state of a program, and the replicas that they keep. Null: no
// state, or no replicas.
struct Holders {
  const Program* program = nullptr;
  std::vector<int> devices;
  const StateReplicas* replicas = nullptr;
};

// Bytes from one device to another or to itself.
struct ReshardMove {
  int value = 0;  // into ReshardPlan::values
  int from = 0, to = 0;
  int replica = -1;     // into StateReplicas::homes, if `from` keeps it as a replica
  Runs in_from, in_to;  // their shards' runs, in bytes
  int64_t bytes() const { return in_to.total(); }
  bool operator==(const ReshardMove&) const = default;
};

struct ReshardPlan {
  std::vector<HeldValue> values;  // for the new program
  std::vector<ReshardMove>
      moves;  // by value, then by place in it; disjoint, together all wanted boxes
  // Elements without a source: "state "exp_avg:w": [0, 4) x [0, 2)". A missing loss scale is not
  // listed: a plan without one before starts from its first.
  std::vector<std::string> lost;
};

// Chooses among replicas such that the busiest sender or receiver is done early. Equal arguments
// give equal results in all processes. Leaves out the values `without`, by kind and name. Requires:
// a device is in at most one of `before` with a program, and in at most one with homes. Throws
// Error(kCaller) if no factors fit the cuts of both plans.
ReshardPlan plan_reshard(
    const std::vector<Holders>& before,
    const Program& after,
    const ByteTime& byte_time = [](int, int) { return 1.0; },
    const std::set<std::pair<std::string, std::string>>& without = {});

}  // namespace medley
