#pragma once

// Pipelines for devices of several kinds, found where they are needed (column generation), and a
// proof how short no step is. A pipeline is a column of a linear program over pools (master.h):
//
//   master   which pipelines do most rows in a step T?       prices: rows that a device is worth
//   pricing  which chain does more rows than its devices     the chain search with a price for each
//            are worth?                                      device (chains/chains.h)
//
// in turn until there is none. Two masters. In that of generate() a pipeline does, with
// micro-batches of b rows, a first one after `fill` and one more each period, b (1 + (T - fill) /
// period) rows: its columns are pipelines that can be planned. In that of bound() it does min(b B,
// all rows), B being what no schedule exceeds: where every chain's rows are worth no more than its
// devices at prices at which all devices are worth fewer rows than a step has, no set of pipelines
// does a step in T. So whatever the prices, and whenever it ends, what bound() returns holds. Where
// there are to be D pipelines at least, each has a price of its own, too, for being one: its rows
// and that price are worth no more than its devices, all devices fewer than the rows of a step and
// D such prices.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "medley/chains/chains.h"
#include "medley/groups/master.h"

namespace medley {

struct PipelineColumn {
  size_t choice = 0;  // of micro-batches, in the order in which they were added
  PipelinePlan plan;
  std::vector<int> devices;  // [pool]
  int64_t rows = 1;          // of a micro-batch
  Nanoseconds fill, period;  // B micro-batches take fill + (B - 1) period
};

struct GenerationLimits {
  int rounds = 10;                  // of the master for a step
  double closer = 0.003;            // a bound this close to what is not excluded suffices
  int64_t searches = 20'000;        // of chains
  int steps = 1 << 20;              // that are judged
  bool far = false;                 // whether those as close as suffices, not closer ones
  std::function<bool()> is_over{};  // asked now and then; null: never
};

class ColumnGeneration {
 public:
  // [pool] devices, rows of a step, the least number of pipelines that bound() is about.
  ColumnGeneration(std::vector<int> devices, int64_t rows, size_t pipelines = 1);

  // Requires: `chains` outlives this; of micro-batches of so many rows.
  void add_choice(int64_t rows, const Chains& chains);

  // Looks for pipelines until none is worth more than its devices, or a limit is met. Returns about
  // how many rows all devices do in `step`, parts of pipelines included.
  double generate(Nanoseconds step, const GenerationLimits& limits);

  // All that were found.
  const std::vector<PipelineColumn>& columns() const { return columns_; }

  // The longest step found that is shorter than what any pipelines of these choices take for all
  // rows. `long_enough`: a step that is known not to be.
  Nanoseconds bound(Nanoseconds long_enough, Closeness closeness, const GenerationLimits& limits);

  int64_t searches() const { return searches_; }

 private:
  struct Choice {
    int64_t rows = 1;
    const Chains* chains = nullptr;
  };
  // A chain of bound(), whatever its schedule.
  struct Proof {
    size_t choice = 0;
    PipelinePlan plan;
    std::vector<int> devices;
  };
  // Of a step: what the chains known do in it in parts, if it is long enough.
  enum class Verdict { kTooShort, kLongEnough, kUnknown };

  double rows_in(const PipelineColumn& column, Nanoseconds step) const;
  int64_t most_rows(const Proof& proof, Nanoseconds step) const;
  std::vector<PipelineColumn> price(Nanoseconds step, const std::vector<double>& prices);
  bool add(PipelineColumn column);
  MasterSolution master_of_proofs(Nanoseconds step) const;
  Nanoseconds least_of_proofs(Nanoseconds low, Nanoseconds high) const;
  Verdict judge(Nanoseconds step, int64_t most_searches, const GenerationLimits& limits);
  struct Walk {
    std::vector<Proof> found;
    int64_t searches = 0;
  };
  Walk walk(size_t choice, size_t part, Nanoseconds step, const MasterSolution& prices) const;
  double worth(const std::vector<int>& devices, const std::vector<double>& prices) const;

  const std::vector<int> devices_;
  const int64_t rows_;
  const int least_columns_;  // 0: no matter how many
  std::vector<Choice> choices_;
  std::vector<PipelineColumn> columns_;
  std::vector<Proof> proofs_;
  Closeness closeness_ = Closeness::kClose;  // of the bound at hand
  int64_t searches_ = 0;
};

}  // namespace medley
