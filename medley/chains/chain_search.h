#pragma once

// The cheapest chain of stages: one search for chains of one pipeline on counted devices, for
// chains whose devices have prices, and for bounds that hold under any schedule. Private to this
// folder.
//
// A state is (layer, pool of the stage there), and has a front of chains of the stages from there
// on, none of which another one equals or beats in all of (cost, end, depth, devices used of each
// pool). Chains that cannot be finished below the limit are dropped (chain_ahead.h).
//
//   at a period P         cost   sum of t + r, and the devices' prices     t, transfers <= P
//                         end    cost and what the updates take beyond it; of a first stage also X
//                         depth  Z below
//   under any schedule    cost   the devices' prices      B t, B transfers, B t - b + S <= T
//     B micro-batches     end    Q_i = max(B t_i, Q_{i+1} + t_i + r_i)     Q_0 + max(0, S_0 - b_0)
//     + u_0 <= T in a time T         depth  R_i = t_i + r_i + R_{i+1}                 B R_i <= T
//     room_i
//
// Z: for the period P, stage i has N_i micro-batches in flight,
//
//   N_i = ceil((t_i + r_i + Z_{i+1}) / P)      Z_i = max(t_i + (N_i - 1) P, t_i + r_i + Z_{i+1})
//
// since in period.h's  max over k of (N_k - 1 + ceil(S_ik / P))  the whole numbers N_k - 1 may be
// moved under the ceil: Z is the largest S + (N_k - 1) P.
// S: what a stage sums with other pipelines at least, from the beginning of its last backward on.
// Q: a stage works for all micro-batches, and the stages before it begin earlier and end later.
// R: a micro-batch is in flight on a stage for as long as it is behind it, at least. Where
// gradients of weights may come late, w_i of t_i, stages in front count for their forward and what
// they send on in Q, and those behind for t - w in R; and Q_0 is B t_0 beside u_0. Both hold for
// every order of calls, so that no plan does B micro-batches in T on devices that are worth less.
//
// X depends on the pools of both ends: where there is any, one search for each pool of the last.

#include <cstdint>
#include <vector>

#include "medley/chains/chains.h"
#include "medley/chains/pipeline_table.h"

namespace medley::pipeline {

struct Chain {
  std::vector<const Option*> stages;  // from the first on; none: there is no chain
  int64_t cost = kNever;              // `end` of its first stage; under any schedule, its `cost`
};

struct ChainSearch {
  DeviceUse use = DeviceUse::kOnce;
  const std::vector<int64_t>* prices = nullptr;  // [pool] of a device; null: they cost nothing
  int64_t below = kNever;                        // chains of this cost or more do not matter
  int64_t longest = 0;                           // of a stage and of a transfer: the period
  int cut_every = 1;                             // layers: stages begin at its multiples only
  int last_pool = -1;                            // of the last stage; -1: any
  int64_t microbatches = 0;                      // under any schedule; 0: at the period
  int64_t step = 0;                              // for so many of them
  Closeness closeness = Closeness::kClose;

  bool any_schedule() const { return microbatches > 0; }
  bool with_q() const { return closeness == Closeness::kClose; }
  bool with_r() const { return closeness != Closeness::kRough; }
  int64_t price(int pool, int devices) const {
    return prices ? (*prices)[static_cast<size_t>(pool)] * devices : 0;
  }
};

// Returns the chain of least cost; of equal ones always the same. `first`: the search begins that
// far above a lower bound of the cost, as a share of it; set to how far it had to go. Null:
// unknown.
Chain cheapest_chain(const Table& table, const ChainSearch& search, double* first = nullptr);

}  // namespace medley::pipeline
