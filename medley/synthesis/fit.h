#pragma once

#include <optional>
#include <string>
#include <vector>

#include "medley/memory/memory.h"
#include "medley/synthesis/request.h"

namespace medley {

// Devices on which a plan does not fit in memory.
struct Misfit {
  struct Shortage {
    int device = 0;  // in the cluster
    double bytes = 0;
  };
  std::vector<Shortage> shortages;  // stage by stage
  DeviceMemory first;               // first one's memory
  size_t place = 0;                 // in the mesh of its stage
  // Whether a device lacks memory even for its parameters and its inputs of a step, so that more
  // micro-batches do not help.
  bool of_any_count = false;
  double bytes() const;  // sum over all of them
};

// Upper limit of the search: more per step are unrealistic, and each costs time and memory.
inline constexpr int64_t kMostMicrobatches = int64_t{1} << 14;

// Returns nullopt if the plan fits on all devices. Lowers the plan, so it counts the actual
// program. All require that the request has an analysis.
std::optional<Misfit> find_misfit(const Plan& plan, const Request& request);
// Overload for a lowered plan.
std::optional<Misfit> find_misfit(const Program& program, const Request& request);

// Returns the factor on micro-batches, a power of two, at least 2, below which plans on these
// devices cannot fit; `missing`: bytes lacking on all of them. Only per-micro-batch memory shrinks
// with more micro-batches.
int64_t times_microbatches(double missing, const Cluster& cluster, const std::vector<int>& devices);

// Reports the deficit of the first device. Advises the smallest change found with which the plan
// fits: more micro-batches (for independent rows), else a smaller batch in the same shares, else
// more memory, and where. It lowers the plan up to 20 times. It does so only once if the request
// has a plan to beat, which needs no advice. Requires: it does not fit.
Infeasible explain_misfit(const Plan& plan, const Request& request);

}  // namespace medley
