#pragma once

// The chain of stages that is worth most where devices have prices: what one pipeline is to a
// planner of several (groups/column_generation.h). Stages, memory and times as in pipeline.h, but
// pools follow each other in any order, A B B A too, and devices are paid for instead of counted,
// so that their number is not in the state.
//
// A state is (layer, pool of the stage there), and has a front of chains of the stages from there
// on, none of which another one equals or beats in all of (cost, end, depth, and devices of the
// pools that are counted). What cannot be finished below the limit is dropped: the least that
// stages in front cost, memory and updates for nothing, is found first.
//
//   at a period P         cost   sum of t + r, and the devices' prices     t, transfers <= P
//                         end    cost and what the updates take beyond it
//                         depth  Z of pipeline_chains.h
//   under any schedule    cost   the devices' prices      B t, B transfers, B t - b + S <= T
//     B micro-batches     end    Q_i = max(B t_i, Q_{i+1} + t_i + r_i)     Q_0 + max(0, S_0 - b_0)
//     + u_0 <= T in a time T         depth  R_i = t_i + r_i + R_{i+1}                 B R_i <= T
//     room_i
//
// S: what a stage sums with other pipelines at least, from the beginning of its last backward on.
// Q: a stage works for all micro-batches, and the stages before it begin earlier and end later.
// R: a micro-batch is in flight on a stage for as long as it is behind it, at least. Where
// gradients of weights may come late, w_i of t_i, stages in front count for their forward and what
// they send on in Q, and those behind for t - w in R; and Q_0 is B t_0 beside u_0. Both hold for
// every order of calls, so that no plan does B micro-batches in T on devices that are worth less.
// Where there are many layers and devices most of the time goes into Q and R together: with R
// alone, or without both, what is left still bounds every schedule, by less, and is found much
// sooner.

#include <memory>
#include <optional>
#include <vector>

#include "medley/pipelines/pipeline.h"

namespace medley {

inline constexpr size_t kMostPricedPools = 1024;
inline constexpr int kMostCountedPools = 4;

// Of a bound under any schedule: without Q and R, with R, with both.
enum class Closeness { kRough, kRooms, kClose };

struct PricedChain {
  PipelinePlan plan;         // `predicted`: of all micro-batches of the choice at its period
  std::vector<int> devices;  // [pool]
  int64_t cost = 0;          // as searched
};

class PricedChains {
 public:
  // Requires: one number of micro-batches, the most of all searches. Throws as plan_pipeline(), but
  // for up to kMostPricedPools pools. `counted`: no chain has more devices of a pool than there
  // are; of the first kMostCountedPools only.
  PricedChains(const PipelineRequest& request, bool counted);
  // Of the same request: options need not be asked for again.
  PricedChains(const ChainSearches& same, bool counted);
  ~PricedChains();

  // [pool] of a device.
  using Prices = std::vector<int64_t>;

  // Of all chains for the period the one whose devices, at prices in nanoseconds, and time for one
  // micro-batch cost least, if that is below `below`. Its plan has the shortest period that it can
  // have, at most this one. Threads may search at once.
  std::optional<PricedChain> at_period(Nanoseconds period,
                                       const Prices& prices,
                                       int64_t below) const;

  // On so many devices of each pool, which are counted and cost nothing: chains that take less than
  // `below` for so many micro-batches, that of the least among them. A search for each period that
  // the best chain can have. Requires: `counted`, kMostCountedPools at most, no more micro-batches
  // than the choice has.
  std::vector<PipelinePlan> on(const std::vector<int>& devices,
                               int microbatches,
                               Nanoseconds below) const;

  // The least that the devices of a chain cost that may do so many micro-batches in `step` under
  // some schedule, if that is below `below`. `first` is for the next search, which begins where
  // this one ended. Its plan has no counts in flight and no period.
  std::optional<PricedChain> under_any_schedule(int64_t microbatches,
                                                Nanoseconds step,
                                                const Prices& prices,
                                                int64_t below,
                                                Closeness closeness,
                                                double* first = nullptr) const;

  // How many micro-batches that chain does in `step` at most, by the same bounds.
  int64_t most_microbatches(const PipelinePlan& plan, Nanoseconds step, Closeness closeness) const;

  // The longest period that can matter.
  Nanoseconds longest_period() const;

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace medley
