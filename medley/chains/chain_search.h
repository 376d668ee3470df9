#pragma once

// Finds the cheapest chain of stages. One search serves chains of one pipeline on counted devices,
// chains on priced devices, and bounds under any schedule. Private to this folder.
//
// A state is (layer, pool of its stage) and has the Pareto front of chains from that stage on, in
// (cost, end, depth, used devices of each pool). Chains that cannot end below the limit are dropped
// (chain_ahead.h).
//
//   at a period P         cost   sum of t + r, and the devices' prices     t, transfers <= P
//                         end    cost and updates beyond it; for a first stage also X
//                         depth  Z below
//   under any schedule    cost   the devices' prices      B t, B transfers, B t - b + S <= T
//     B micro-batches     end    Q_i = max(B t_i, Q_{i+1} + t_i + r_i)
//     in a time T                Q_0 + max(0, S_0 - b_0) + u_0 <= T
//                         depth  R_i = t_i + r_i + R_{i+1}                 B R_i <= T room_i
//
// Z: for the period P, stage i has N_i micro-batches in flight,
//
//   N_i = ceil((t_i + r_i + Z_{i+1}) / P)      Z_i = max(t_i + (N_i - 1) P, t_i + r_i + Z_{i+1})
//
// In period.h's  max over k of (N_k - 1 + ceil(S_ik / P))  the whole numbers N_k - 1 may be moved
// under the ceil: Z is the largest S + (N_k - 1) P. S: least time to sum with other pipelines, from
// the start of the stage's last backward on. Q: a stage works for all micro-batches; stages before
// it begin earlier and end later. R: a micro-batch is in flight on a stage at least while it is on
// later stages. With deferred weight gradients, w_i of t_i, earlier stages count in Q with forward
// and the gradient that they send on; later ones count with t - w in R. Q_0 is then B t_0 with u_0
// added. Both bounds hold for every order of calls: no plan does B micro-batches in T on cheaper
// devices.
//
// X depends on the pools of both ends: if it is not 0, one search runs for each last pool.

#include <cstdint>
#include <vector>

#include "medley/chains/chains.h"
#include "medley/chains/pipeline_table.h"

namespace medley::pipeline {

struct Chain {
  std::vector<const Option*> stages;  // first to last; empty: there is no chain
  int64_t cost = kNever;              // `end` of its first stage; under any schedule, its `cost`
};

struct ChainSearch {
  DeviceUse use = DeviceUse::kOnce;
  const std::vector<int64_t>* prices = nullptr;  // [pool] per device; null: free
  int64_t below = kNever;                        // upper limit of the cost
  int64_t longest = 0;                           // limit of stages and transfers: the period
  int cut_every = 1;                             // layers: stages begin at its multiples only
  int last_pool = -1;                            // last stage's pool; -1: any
  int64_t microbatches = 0;                      // under any schedule; 0: at the period
  int64_t step = 0;                              // for all `microbatches`
  Closeness closeness = Closeness::kClose;

  bool any_schedule() const { return microbatches > 0; }
  bool with_q() const { return closeness == Closeness::kClose; }
  bool with_r() const { return closeness != Closeness::kRough; }
  int64_t price(int pool, int devices) const {
    return prices ? (*prices)[static_cast<size_t>(pool)] * devices : 0;
  }
};

// Returns the chain of least cost; ties are broken deterministically. `first`: how far above a
// lower bound of the cost the search begins, as a share of the bound. It is set to the share
// reached. Null: unknown.
Chain cheapest_chain(const Table& table, const ChainSearch& search, double* first = nullptr);

}  // namespace medley::pipeline
