#pragma once

// Which pipelines divide the devices and the rows of a step, and how short no step is, from what
// stages and cuts take: columns (pipelines), the best divisions (divisions.h), and a bound
// (column_generation.h). Knows no graphs and no plans; autohet.h makes plans of what it finds.
//
//   columns   where devices can be counted out in few ways: the best chains for each amount, for
//             the micro-batches that it does in a step; and then for one more than the best known
//             does in less than the shortest step, until there is none
//             else, or besides: chains that the prices of devices ask for
//
// What a pipeline still sums with others is part of what the update of a stage takes, and depends
// on how many they are. Chains are searched as of the fewest pipelines, which sum least; as of more
// where so many would do a shorter step if they summed no more than these.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "medley/groups/column_generation.h"
#include "medley/groups/divisions.h"
#include "medley/groups/gradient_sums.h"

namespace medley {

inline constexpr size_t kMostPipelines = 8, kMostAlike = 32;

struct GroupRequest {
  int layers = 0;
  int layers_of_block = 1;  // chains have whole blocks first
  std::vector<PipelinePool> pools;
  GradientSums sums;             // with the links between pools
  std::vector<Units> amounts{};  // of devices, for which the best chains are searched
  std::vector<double> speeds;    // [pool] of a device, in any unit
  int64_t rows = 1;              // of a step
  size_t pipelines = 2;          // at least
  Nanoseconds least{};           // no step is shorter: where the search at prices begins
  double gap = 0;                // of a chain of an amount
  double slower = 1.1;           // divisions may be predicted to be slower by this than the best
  std::optional<Nanoseconds> faster_than{};  // what takes as long or longer does not matter
  std::optional<double> within{};            // a step shown to be as close to the best will do
  std::function<bool()> is_over{};           // asked now and then; null: never
};

// Devices: with more, a search for chains takes a tenth of a second and more, so that fewer amounts
// of them are searched, and stages of chains on larger amounts are on whole nodes of a pool of
// many.
inline constexpr int kMostInDetail = 64;

class GroupSearch {
 public:
  explicit GroupSearch(GroupRequest request);

  // Looks for pipelines with micro-batches of so many rows, `choice.count` of which are a step.
  // `last`: no better stages of this size will be offered. Requires: options can be asked for as
  // long as this lives.
  void add(const MicrobatchChoice& choice, int64_t rows, bool last);
  // Looks for pipelines that prices ask for, of all choices that were the last of their size.
  void search_at_prices();
  // Looks for pipelines of each amount that do more in less than the shortest step, of any number
  // of them, until there are none.
  void improve();

  // Of the best division known, as predicted where stages sum over the fastest links.
  std::optional<Nanoseconds> step() const { return step_; }
  // Predicted steps that matter.
  Nanoseconds limit() const;
  // Of a stage for a micro-batch, `count` of which are a step: what takes longer does not matter,
  // as the smallest amount of devices does more than one in a step that does.
  Nanoseconds longest_stage(int64_t count) const;
  // Whether what is found will do.
  bool enough();
  // So few devices that chains are searched with what pipelines sum, and bounds are close.
  bool is_small() const;
  // So many that few amounts of them are searched.
  bool is_large() const;
  bool counts_amounts() const { return !request_.amounts.empty(); }

  // The best first, where each stage sums over the links to those that have the same layers.
  std::vector<Division> divisions(size_t most) const;
  // Pipelines of a division, with what they sum in it.
  std::vector<Column> columns(const std::vector<int>& numbers) const;
  struct Chain {
    PipelinePlan plan;
    int64_t count = 1;  // micro-batches of a step if all are as large
  };
  const Chain& chain(int number) const { return chains_[static_cast<size_t>(number)]; }

  // No pipelines of what was searched take less, whatever their schedule.
  Nanoseconds bound();

 private:
  // Of chains of pipelines that sum as so many do.
  struct Searches {
    std::shared_ptr<Chains> by_amount;  // null: there are too many pools, or amounts
    std::shared_ptr<Chains> in_detail;  // of few of many devices; null: by_amount is
    std::shared_ptr<Chains> at_prices;  // null: not the last of its size
    // [amount] No chain does so many micro-batches, or more, in less than that.
    std::vector<std::pair<int64_t, Nanoseconds>> none{};
  };
  struct Choice {
    MicrobatchChoice asked;  // its `count` is of a whole step
    int64_t rows = 1;
    Searches fewest;                  // pipelines
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
  std::vector<Division> alike() const;
  std::vector<Division> with_links(std::vector<Division> divisions) const;
  DivisionRequest division_request() const;

  const GroupRequest request_;
  const Units devices_;  // [pool]
  std::vector<Choice> choices_;
  ColumnGeneration generation_;
  std::vector<size_t> generated_;  // its choices, by number here
  std::vector<Column> columns_;
  std::vector<Chain> chains_;        // parallel
  std::optional<Nanoseconds> step_;  // of the best division, as predicted
  std::optional<Nanoseconds> sure_;  // of a division with the links that it has
  Nanoseconds least_;                // no step is shorter
};

}  // namespace medley
