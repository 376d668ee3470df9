#pragma once

// Generates pipelines for heterogeneous devices on demand (column generation), with a lower bound
// of the step. A pipeline is a column of a linear program over pools (master.h):
//
//   master   which pipelines do most rows in a step T?       prices: rows that a device is worth
//   pricing  which chain does more rows than its devices     the chain search with a price for each
//            are worth?                                      device (chains/chains.h)
//
// The two alternate until pricing finds no chain. There are two masters. In generate() a pipeline
// does, with micro-batches of b rows, a first one after `fill` and one more each period, b (1 + (T
// - fill) / period) rows: its columns can be planned. In bound() it does min(b B, all rows); no
// schedule exceeds B. Suppose that at some prices no chain's rows are worth more than its devices,
// and all devices less than the rows of a step. Then no set of pipelines does a step in T, so
// bound() is valid for any prices and at any stop. If at least D pipelines are required, each has a
// price of its own. Its rows and that price are worth at most its devices; all devices less than
// the rows of a step and D such prices.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "medley/chains/chains.h"
#include "medley/groups/master.h"

namespace medley {

struct PipelineColumn {
  size_t choice = 0;  // index, in order of add_choice()
  PipelinePlan plan;
  std::vector<int> devices;  // [pool]
  int64_t rows = 1;          // per micro-batch
  Nanoseconds fill, period;  // B micro-batches take fill + (B - 1) period
};

struct GenerationLimits {
  int rounds = 10;                  // solutions of the master per step
  double closer = 0.003;            // relative distance at which a bound is close enough
  int64_t searches = 20'000;        // searches of chains
  int steps = 1 << 20;              // most steps to judge
  bool far = false;                 // whether to stop at `closer`, without refinement
  std::function<bool()> is_over{};  // polled; null: never
};

class ColumnGeneration {
 public:
  // Takes [pool] devices, rows of a step, and the least number of pipelines for bound().
  ColumnGeneration(std::vector<int> devices, int64_t rows, size_t pipelines = 1);

  // Adds micro-batches of `rows` rows. Requires: `chains` outlives this.
  void add_choice(int64_t rows, const Chains& chains);

  // Searches pipelines until none is worth more than its devices, or a limit is met. Returns about
  // how many rows all devices do in `step`, with fractional pipelines.
  double generate(Nanoseconds step, const GenerationLimits& limits);

  // Returns all pipelines found.
  const std::vector<PipelineColumn>& columns() const { return columns_; }

  // Returns the largest proven lower bound of the step of any pipelines of these choices, for all
  // rows. `long_enough`: a step known to be feasible.
  Nanoseconds bound(Nanoseconds long_enough, Closeness closeness, const GenerationLimits& limits);

  int64_t searches() const { return searches_; }

 private:
  struct Choice {
    int64_t rows = 1;
    const Chains* chains = nullptr;
  };
  // A chain of bound(), for any schedule.
  struct Proof {
    size_t choice = 0;
    PipelinePlan plan;
    std::vector<int> devices;
  };
  // Verdict about a step, from fractions of the known chains.
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
  const int least_columns_;  // 0: any number
  std::vector<Choice> choices_;
  std::vector<PipelineColumn> columns_;
  std::vector<Proof> proofs_;
  Closeness closeness_ = Closeness::kClose;  // for the current bound
  int64_t searches_ = 0;
};

}  // namespace medley
