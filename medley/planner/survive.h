#pragma once

// What it takes that the state of a run outlives any one node: nothing where each element of it is
// on two; else copies of what only one has, given to others every so many steps
// (elastic/second_homes.h), as seldom as keeps that to a fiftieth of the time.
//
//   step 10 ms, copies 8 ms    every 40 steps, 0.2 ms a step
//   step 10 ms, copies 0.1 ms  every 2 steps, 0.05 ms a step

#include <string>

#include "medley/base/units.h"
#include "medley/cluster/cluster.h"
#include "medley/program/program.h"

namespace medley {

// How many steps may pass between copies, so that these cost little; two at least, since one
// without copies is needed to compare with. `step`: what one takes, 0 if nobody knows.
int64_t steps_between_copies(Nanoseconds copies, Nanoseconds step);

struct Survival {
  int64_t bytes = 0;    // that a node alone has, and that are copied
  int64_t without = 0;  // for which nobody has room: they are not
  Nanoseconds copies;   // what the device takes that sends or receives most
  int64_t every = 0;    // steps; 0: there is nothing to copy
  // Of a step. Of one whose state does not outlive a node, more than any step takes.
  Nanoseconds costs() const;
};

// `step`: what it takes.
Survival survival(const Program& program, const Cluster& cluster, Nanoseconds step);
std::string to_string(const Survival& survival, Nanoseconds step);
// Why nothing with such a plan does.
std::string cannot_survive(const Survival& survival);

}  // namespace medley
