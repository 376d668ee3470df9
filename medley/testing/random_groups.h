#pragma once

// Instances of the search for several pipelines: devices of a few pools, and what stages take for
// micro-batches of one or two sizes, drawn at random, the same ones for the same seed on any
// machine; and all sets of pipelines on them, one by one.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "medley/chains/pipeline.h"
#include "medley/groups/gradient_sums.h"
#include "medley/groups/master.h"

namespace medley {

struct GroupInstance {
  using Options = std::map<StageRange, std::vector<StageOption>>;
  PipelineRequest request;  // but for its micro-batches
  std::vector<int> devices;
  int64_t rows = 1;  // of a step
  std::vector<int64_t> rows_of_microbatch;
  std::vector<std::unique_ptr<Options>> options;  // [choice]
  std::vector<MicrobatchChoice> choices;
  GradientSums sums;
};

// 1 to 3 pools of 1 to 6 devices in all, 1 to 6 layers, 2 to 40 rows. `sums`: pipelines sum
// gradients, else they share nothing.
GroupInstance random_groups(uint64_t seed, bool sums);

// How many of them a test looks at: nightly there are more.
uint64_t group_seeds();

// All sets of pipelines on the devices, all chains of each, pools in any order, all micro-batches.
// Counts in flight by medley/schedule.
class AllGroups {
 public:
  explicit AllGroups(const GroupInstance& instance);

  size_t num_chains() const { return chains_.size(); }
  // The shortest step of one pipeline with all micro-batches of a choice.
  std::optional<int64_t> best_pipeline(size_t choice) const;
  // The shortest step of so many pipelines or more; nothing if there are none.
  std::optional<int64_t> best(size_t pipelines) const;
  // What all chains do in a step in parts, at most, under any schedule, as parts of so many
  // pipelines or more.
  double rows_in_parts(int64_t step, size_t pipelines) const;

 private:
  struct Known {
    size_t choice = 0;
    std::vector<int> devices;
    PipelinePlan plan;
  };
  // [choice, micro-batches] how long they take at least, [pipelines] of so many.
  using Steps = std::map<std::pair<size_t, int>, std::vector<int64_t>>;
  using ByDevices = std::map<std::vector<int>, Steps>;

  int64_t rows_of(const Steps& steps, int64_t step, size_t pipelines) const;
  int64_t most_rows(int64_t step,
                    const std::vector<int>& left,
                    ByDevices::const_iterator from,
                    size_t pipelines,
                    size_t missing) const;
  std::optional<int64_t> best_of(size_t pipelines) const;
  void extend(int begin, std::vector<int>& left);
  bool add_boundary(const StageRange& before, int to);
  void judge(const std::vector<int>& left);
  std::optional<Nanoseconds> step_of(int count);
  int64_t after(size_t pipelines) const;
  bool may_do(const Known& chain, int64_t count, int64_t step, bool alone) const;

  const GroupInstance& instance_;
  size_t choice_ = 0;
  PipelinePlan plan_;
  ByDevices steps_;
  std::vector<Known> chains_;
};

}  // namespace medley
