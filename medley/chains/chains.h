#pragma once

// Chains of stages, found again and again from options that are asked for once: of one pipeline on
// some of the devices, and where devices have prices (groups/column_generation.h). Stages, memory
// and times as in pipeline.h; the search itself is in chain_search.h.

#include <memory>
#include <optional>
#include <vector>

#include "medley/chains/pipeline.h"

namespace medley {

inline constexpr size_t kMostPricedPools = 1024;

// Of a bound under any schedule: without Q and R (chain_search.h), with R, with both. Where there
// are many layers and devices most of the time goes into Q and R together: what is left still
// bounds every schedule, by less, and is found much sooner.
enum class Closeness { kRough, kRooms, kClose };

struct PricedChain {
  PipelinePlan plan;         // `predicted`: of all micro-batches of the choice at its period
  std::vector<int> devices;  // [pool]
  int64_t cost = 0;          // as searched
};

class Chains {
 public:
  // Requires: one number of micro-batches, the most of all searches. Throws as plan_pipeline(), but
  // for up to kMostPricedPools pools. Devices that have prices are counted, too, where chains may
  // have pools in any order (PipelineRequest::use).
  explicit Chains(const PipelineRequest& request);
  ~Chains();

  // On so many devices of each pool: the plans of plan_pipeline(), all that take less than `below`.
  // None: nothing fits. Threads may search at once. Requires: kMostCountedPools at most, no more
  // micro-batches than the choice has.
  std::vector<PipelinePlan> on(const std::vector<int>& devices,
                               int microbatches,
                               Nanoseconds below,
                               int cut_every = 1) const;

  // [pool] of a device.
  using Prices = std::vector<int64_t>;

  // Of all chains for the period the one whose devices, at prices in nanoseconds, and time for one
  // micro-batch cost least, if that is below `below`. Its plan has the shortest period that it can
  // have: at most this one, unless devices are not counted and it comes back to a pool of one port.
  // Threads may search at once.
  std::optional<PricedChain> at_period(Nanoseconds period,
                                       const Prices& prices,
                                       int64_t below) const;

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
