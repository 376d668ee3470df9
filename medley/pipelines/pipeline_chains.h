#pragma once

// The least sum of a chain of stages none of which takes longer than a period. Private to
// pipeline*.cpp.
//
// From the last layer to the first: a state is (layer, set of finished pools, current pool, devices
// used in it), and has a front of chains of the stages from there on,
//
//   sum     t + r of all stages behind it
//   end     sum and what the updates take beyond it:
//             max(sum + u,  end behind + forward + up + latency); of a first stage also sum + X
//   depth   what decides how many micro-batches a stage before it has in flight
//
// none of which another one equals or beats in all three on as many devices or fewer, and that can
// be finished below the limit (pipeline_ahead.h). Devices are counted in what all sizes of a pool
// are multiples of. `depth` is
// the count itself where it grows by a rule for each boundary; for the period P it is Z,
//
//   N_i = ceil((t_i + r_i + Z_{i+1}) / P)      Z_i = max(t_i + (N_i - 1) P, t_i + r_i + Z_{i+1})
//
// since in period.h's  max over k of (N_k - 1 + ceil(S_ik / P))  the whole numbers N_k - 1 may be
// moved under the ceil: Z is the largest S + (N_k - 1) P.
//
// X depends on the pools of both ends: where there is any, one search for each pool of the last.

#include <vector>

#include "medley/pipelines/pipeline_table.h"

namespace medley::pipeline {

struct Chain {
  std::vector<const Option*> stages;  // from the first on; none: there is no chain
  int64_t cost = kNever;              // sum and what the updates take beyond it
};

struct ChainSearch {
  int64_t period = 0;
  int64_t below = kNever;  // chains of this cost or more do not matter
  bool pruned = true;      // false: look at chains that cannot be finished, too
  int last_pool = -1;      // of the last stage; -1: any
  // So many micro-batches, whatever their schedule: the cost is Q, and depth R, of priced_chains.h,
  // for a step of as many periods. 0: by a schedule for the period.
  int64_t at_least = 0;
};

// Returns the chain of least cost; of equal ones always the same. Adds to `labels` the number of
// chains kept.
Chain cheapest_chain(const Table& table, const ChainSearch& search, int64_t& labels);

}  // namespace medley::pipeline
