#pragma once

// Searches pipelines that divide the devices and rows of a step, given costs of stages and cuts. It
// finds columns (pipelines), the best divisions (divisions.h), and a lower bound of the step
// (column_generation.h). Knows no graphs and no plans; autohet.h makes the plans.
//
//   columns   if there are few amounts of devices: the best chains for each amount, for the number
//             of micro-batches that it does in a step; then for one more than the best known does
//             in less than the shortest step, until none remains
//             else, or in addition: chains found by prices of devices
//
// A pipeline's sums with others are part of its stages' updates and depend on the number of
// pipelines. Chains are searched for the fewest pipelines, which sum least, and for more if these
// would have a shorter step with the same sums.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "medley/groups/column_generation.h"
#include "medley/groups/divisions.h"
#include "medley/groups/gradient_sums.h"

namespace medley {

inline constexpr size_t kMostPipelines = 8, kMostIdentical = 32;

struct GroupRequest {
  int layers = 0;
  int layers_of_block = 1;  // chains of whole blocks are searched first
  std::vector<PipelinePool> pools;
  GradientSums sums;                         // with links
  std::vector<Units> amounts{};              // each is searched for chains
  std::vector<double> speeds;                // [pool] of a device, in any unit
  int64_t rows = 1;                          // per step
  size_t pipelines = 2;                      // at least
  Nanoseconds least{};                       // lower bound of the step
  double gap = 0;                            // optimality gap per chain
  double slower = 1.1;                       // largest step relative to the best
  std::optional<Nanoseconds> faster_than{};  // only shorter steps matter
  std::optional<double> step_gap{};          // relative gap that suffices
  std::function<bool()> is_over{};           // polled; null: never
};

// Number of devices above which one search of chains takes 0.1 s or more. Then fewer amounts are
// searched, and chains on larger amounts use whole nodes of pools with many.
inline constexpr int kMostInDetail = 64;

class GroupSearch {
 public:
  explicit GroupSearch(GroupRequest request);

  // Searches pipelines with micro-batches of `rows` rows, `choice.count` per step. `last`: no
  // better stages of this size will follow. Requires: options stay available as long as this object
  // exists.
  void add(const MicrobatchChoice& choice, int64_t rows, bool last);
  // Searches pipelines at prices of devices, over all choices added with `last`.
  void search_at_prices();
  // Searches each amount for pipelines that do more in less than the shortest step, for any number
  // of pipelines, until none remain.
  void improve();

  // Returns the predicted step of the best division, with sums over the fastest links.
  std::optional<Nanoseconds> step() const { return step_; }
  // Returns the limit of predicted steps that matter.
  Nanoseconds limit() const;
  // Returns the longest useful time of a stage per micro-batch, `count` per step. In a useful step
  // the smallest amount of devices does more than one.
  Nanoseconds longest_stage(int64_t count) const;
  // Returns whether the result suffices.
  bool enough();
  // Returns whether chains are searched with gradient sums and bounds are close.
  bool is_small() const;
  // Returns whether only few amounts are searched.
  bool is_large() const;
  bool counts_amounts() const { return !request_.amounts.empty(); }

  // Returns divisions, best first, with the actual links of each stage's sums.
  std::vector<Division> divisions(size_t most) const;
  // Returns the pipelines of a division, with their sums in it.
  std::vector<Column> columns(const std::vector<int>& numbers) const;
  struct Chain {
    PipelinePlan plan;
    int64_t count = 1;  // micro-batches of a step if all are equally large
  };
  const Chain& chain(int number) const { return chains_[static_cast<size_t>(number)]; }

  // Returns a lower bound of the step of all searched pipelines, for any schedule.
  Nanoseconds bound();

 private:
  // Searches of chains for one number of pipelines.
  struct Searches {
    std::shared_ptr<Chains> by_amount;  // null: too many pools or amounts
    std::shared_ptr<Chains> in_detail;  // few devices of many; null: use by_amount
    std::shared_ptr<Chains> at_prices;  // null: not added with `last`
    // [amount] No chain does this many micro-batches in less than this time.
    std::vector<std::pair<int64_t, Nanoseconds>> none{};
  };
  struct Choice {
    MicrobatchChoice asked;  // its `count` is of a whole step
    int64_t rows = 1;
    Searches fewest;                  // for the fewest pipelines
    std::map<size_t, Searches> more;  // [pipelines]
  };
  PipelineRequest chains_of(const MicrobatchChoice& choice, size_t pipelines) const;
  PipelineRequest on_nodes(PipelineRequest request) const;
  double share(const Units& amount) const;
  void search_amounts(const Choice& choice);
  bool search_amounts(const Choice& choice, const std::vector<Units>& amounts, int cut_every);
  std::vector<Units> used_amounts(const Choice& choice) const;
  int64_t most_microbatches(const Units& amount,
                            const Choice& choice,
                            Nanoseconds step,
                            size_t pipelines) const;
  Searches& searches(Choice& choice, size_t pipelines) const;
  int num_devices() const;
  bool is_over() const { return request_.is_over && request_.is_over(); }
  void improve(size_t pipelines);
  bool may_be_shorter(size_t pipelines) const;
  bool add_column(const Units& devices,
                  const PipelinePlan& plan,
                  const Choice& choice,
                  size_t pipelines);
  Nanoseconds bound(Nanoseconds long_enough, Closeness closeness, GenerationLimits limits);
  Nanoseconds bound_of_many(Nanoseconds long_enough);
  void find_step();
  int copies_of(const Units& amount) const;
  std::vector<Division> identical() const;
  std::vector<Division> with_links(std::vector<Division> divisions) const;
  DivisionRequest division_request() const;

  const GroupRequest request_;
  const Units devices_;  // [pool]
  std::vector<Choice> choices_;
  ColumnGeneration generation_;
  std::vector<size_t> generated_;  // its choices, as numbered here
  std::vector<Column> columns_;
  std::vector<Chain> chains_;        // parallel
  std::optional<Nanoseconds> step_;  // best division's, as predicted
  std::optional<Nanoseconds> sure_;  // division with its actual links
  Nanoseconds least_;                // lower bound of the step
};

}  // namespace medley
