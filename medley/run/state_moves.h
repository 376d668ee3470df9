#pragma once

// State that goes from a run to the next one of the same training, whose plan is another: by moves
// (medley/elastic/moves.h), over messages between the processes; and copies of it that are kept for
// that, one's own and those of others (medley/elastic/second_homes.h). Knows no reason.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "medley/elastic/moves.h"
#include "medley/run/run.h"

namespace medley {

// Where a process meets the others: a process group, which c10d knows by the name, the device of
// the cluster of each of its ranks, and which one this process has.
struct MovePeers {
  std::string group;
  std::vector<int> members;
  int device = 0;
  std::chrono::milliseconds timeout{0};
};

// What the process of one device has of a state.
struct KeptState {
  std::map<std::pair<std::string, std::string>, at::Tensor> shards;  // by kind and name
  std::map<int, at::Tensor> homes;  // flat bytes, by SecondHomes::homes
};

// Shares the run's tensors: whoever would change one that another holds makes a copy first
// (kernels/update.cpp). Requires: between steps.
KeptState hold(Run& run);

// Gives others what is to live with them a second time, and takes what is to live here; returns the
// bytes sent. All members call it.
int64_t fill_homes(KeptState& state, const SecondHomes& homes, const MovePeers& peers);

struct MovedBytes {
  int64_t kept = 0;      // that a device has given itself: no copy where the shard is the same
  int64_t received = 0;  // from others
  int64_t sent = 0;
  int64_t homes = 0;  // of what is kept or received, from second homes
};

// What the process of one device does of the moves, together with all members. `before` may have
// nothing; null for `after`: it gets nothing. Afterwards both may share tensors: a step of a run
// changes none that somebody else holds.
MovedBytes move_state(const Moves& moves,
                      const KeptState& before,
                      Run* after,
                      const MovePeers& peers);

// Gives values of one run to another run of the same processes, which has other values beside them:
// whole shards as they are, not copied. Null: that run has no device of this process. `peers`: null
// where all devices are of this process. Requires: between steps of both.
MovedBytes share_state(const Moves& moves, Run* before, Run* after, const MovePeers* peers);

}  // namespace medley
