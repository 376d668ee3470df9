#pragma once

// Cost of keeping the state of a run through the loss of any one node. It is 0 if each element is
// on two nodes. Otherwise unreplicated state is copied to other nodes periodically
// (elastic/state_replicas.h), at most a fiftieth of the time.
//
//   step 10 ms, copies 8 ms    every 40 steps, 0.2 ms a step
//   step 10 ms, copies 0.1 ms  every 2 steps, 0.05 ms a step

#include <string>

#include "medley/base/units.h"
#include "medley/cluster/cluster.h"
#include "medley/program/program.h"

namespace medley {

// Returns the steps between copies that keep their cost low. The least is 2: a step without copies
// is needed for comparison. `step`: time of one step, 0 if unknown.
int64_t steps_between_copies(Nanoseconds copies, Nanoseconds step);

struct ReplicationCost {
  int64_t bytes = 0;    // unreplicated and copied
  int64_t without = 0;  // without memory elsewhere: not copied
  Nanoseconds copies;   // on the device that sends or receives most
  int64_t every = 0;    // steps; 0: no copies
  // Returns the cost per step; more than any step if state is lost with a node.
  Nanoseconds costs() const;
};

// `step`: time of one step.
ReplicationCost replication_cost(const Program& program, const Cluster& cluster, Nanoseconds step);
std::string to_string(const ReplicationCost& replication_cost, Nanoseconds step);
// Returns the reason why no run of such a plan tolerates node loss.
std::string cannot_tolerate_node_loss(const ReplicationCost& replication_cost);

}  // namespace medley
