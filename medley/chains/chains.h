#pragma once

// Searches chains repeatedly over options that are computed once: of one pipeline on some devices,
// and on priced devices (groups/column_generation.h). Stages, memory and times are those of
// pipeline.h; chain_search.h has the search.

#include <memory>
#include <optional>
#include <vector>

#include "medley/chains/pipeline.h"

namespace medley {

inline constexpr size_t kMostPricedPools = 1024;

// Terms of a bound under any schedule: without Q and R (chain_search.h), with R, with both. With
// many layers and devices most of the time goes into Q and R together. Looser bounds also hold for
// every schedule and are much faster.
enum class Closeness { kRough, kRooms, kClose };

struct PricedChain {
  PipelinePlan plan;         // `predicted`: all micro-batches of the choice at its period
  std::vector<int> devices;  // [pool]
  int64_t cost = 0;          // as searched
};

class Chains {
 public:
  // Requires: one number of micro-batches, the most of all searches. Throws as plan_pipeline(), but
  // allows kMostPricedPools pools. Priced devices are also counted if chains may have pools in any
  // order (PipelineRequest::use).
  explicit Chains(const PipelineRequest& request);
  ~Chains();

  // Returns the plans of plan_pipeline() below `below` on `devices` of each pool; none if nothing
  // fits. Thread-safe. Requires: kMostCountedPools at most, no more micro-batches than the choice
  // has.
  std::vector<PipelinePlan> on(const std::vector<int>& devices,
                               int microbatches,
                               Nanoseconds below,
                               int cut_every = 1) const;

  // [pool] price of a device.
  using Prices = std::vector<int64_t>;

  // Returns the cheapest chain at `period`: its devices at `prices`, in ns, plus the time of one
  // micro-batch; nullopt unless below `below`. Its plan has its shortest period. That exceeds
  // `period` only if devices are uncounted and it returns to a pool of one port. Thread-safe.
  std::optional<PricedChain> at_period(Nanoseconds period,
                                       const Prices& prices,
                                       int64_t below) const;

  // Returns the cheapest devices of a chain that may do `microbatches` in `step` under some
  // schedule; nullopt unless below `below`. `first` carries over to the next search, which begins
  // there. The plan has no in-flight counts and no period.
  std::optional<PricedChain> under_any_schedule(int64_t microbatches,
                                                Nanoseconds step,
                                                const Prices& prices,
                                                int64_t below,
                                                Closeness closeness,
                                                double* first = nullptr) const;

  // Returns the most micro-batches that this chain does in `step`, by the same bounds.
  int64_t most_microbatches(const PipelinePlan& plan, Nanoseconds step, Closeness closeness) const;

  // Returns the longest useful period.
  Nanoseconds longest_period() const;

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace medley
