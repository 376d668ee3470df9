#pragma once

// Moves state from a run to its successor with another plan, by moves (medley/elastic/reshard.h)
// over messages between the processes. Also keeps replicas for that, of its own state and of
// others' (medley/elastic/state_replicas.h). Knows no reason.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "medley/elastic/reshard.h"
#include "medley/run/run.h"

namespace medley {

// The process group for moves: its c10d name, the cluster device of each rank, and this process's
// rank.
struct ReshardPeers {
  std::string group;
  std::vector<int> members;
  int device = 0;
  std::chrono::milliseconds timeout{0};
};

// The state that the process of one device stores.
struct KeptState {
  std::map<std::pair<std::string, std::string>, at::Tensor> shards;  // by kind and name
  std::map<int, at::Tensor> replicas;  // flat bytes, by StateReplicas::homes
};

// Shares the run's tensors, so any later change of one works on a copy (kernels/update.cpp).
// Requires: between steps.
KeptState hold(Run& run);

// Exchanges replicas with all members, which all call this. Returns the sent bytes.
int64_t fill_replicas(KeptState& state, const StateReplicas& replicas, const ReshardPeers& peers);

struct ReshardedBytes {
  int64_t kept = 0;      // local moves; no copy if the shard is unchanged
  int64_t received = 0;  // from other processes
  int64_t sent = 0;
  int64_t replicas = 0;  // the part from replicas
};

// Executes this process's moves, together with all members. `before` may be empty. Null for
// `after`: it gets no state. Both may share tensors afterwards: a step changes no shared tensor.
ReshardedBytes reshard_state(const ReshardPlan& moves,
                             const KeptState& before,
                             Run* after,
                             const ReshardPeers& peers);

// Gives values of one run to another run of the same processes with further values: unchanged
// shards without a copy. Null: that run has no device of this process. `peers`: null if all devices
// are in this process. Requires: between steps of both.
ReshardedBytes share_state(const ReshardPlan& moves,
                           Run* before,
                           Run* after,
                           const ReshardPeers* peers);

}  // namespace medley
