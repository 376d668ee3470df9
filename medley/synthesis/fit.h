#pragma once

#include <optional>
#include <string>
#include <vector>

#include "medley/memory/memory.h"
#include "medley/synthesis/request.h"

namespace medley {

// Which devices' memory does not hold a plan.
struct Misfit {
  struct Shortage {
    int device = 0;  // of the cluster
    double bytes = 0;
  };
  std::vector<Shortage> shortages;  // stage by stage
  DeviceMemory first;               // of the first of them
  size_t place = 0;                 // in the mesh of its stage
  // One of them has not even room for its parameters and the inputs of its rows in a step, however
  // many micro-batches they are cut into.
  bool of_any_count = false;
  double bytes() const;  // that all of them shortage
};

// Nobody runs a step of more, and looking at one takes time and memory for each.
inline constexpr int64_t kMostMicrobatches = int64_t{1} << 14;

// Returns nothing if all devices have enough. Lowers the plan, so that what is counted is what will
// run. All require that the request has an analysis.
std::optional<Misfit> find_misfit(const Plan& plan, const Request& request);
// The same, if it is lowered already.
std::optional<Misfit> find_misfit(const Program& program, const Request& request);

// By how much micro-batches have to be more for plans of these devices, which lack so many bytes
// together, to have a chance: a power of two, 2 at least. What they hold for micro-batches shrinks
// as these do, and nothing else does.
int64_t times_microbatches(double missing, const Cluster& cluster, const std::vector<int>& devices);

// Says how much the first device lacks. The advice is the smallest change found with which the plan
// would fit: more micro-batches, where rows do not meet; else a smaller batch, in the same shares;
// else memory, and where. Lowers the plan up to a score of times; where the request has a plan to
// beat, and so needs no advice, only once. Requires: it does not fit.
Infeasible explain_misfit(const Plan& plan, const Request& request);

}  // namespace medley
