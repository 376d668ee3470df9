#pragma once

// State that goes from a run to the next one of the same training, whose plan is another: by moves
// (medley/elastic/moves.h), over messages between the processes. Knows no reason.

#include <chrono>
#include <string>
#include <vector>

#include "medley/elastic/moves.h"
#include "medley/torch/run.h"

namespace medley {

struct MovedBytes {
  int64_t kept = 0;      // that a device has given itself: no copy where the shard is the same
  int64_t received = 0;  // from others
  int64_t sent = 0;
};

// What the process of one device does of it, together with all `members`: devices of the cluster in
// the order of their ranks in a process group, which c10d knows by the name. Null for `before`: it
// has nothing; for `after`: it gets nothing. Afterwards both runs may share tensors: a step of
// either changes none that the other holds.
MovedBytes move_state(const Moves& moves,
                      int device,
                      Run* before,
                      Run* after,
                      const std::string& group,
                      const std::vector<int>& members,
                      std::chrono::milliseconds timeout);

}  // namespace medley
