#pragma once

// Random instances of the search for several pipelines: devices of a few pools, and stage times for
// micro-batches of one or two sizes. Equal seeds give equal instances on any machine. Also
// enumerates all sets of pipelines on them.

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
  PipelineRequest request;  // except its micro-batches
  std::vector<int> devices;
  int64_t rows = 1;  // per step
  std::vector<int64_t> rows_of_microbatch;
  std::vector<std::unique_ptr<Options>> options;  // [choice]
  std::vector<MicrobatchChoice> choices;
  GradientSums sums;
};

// Returns 1 to 3 pools of 1 to 6 devices in all, 1 to 6 layers, 2 to 40 rows. `sums`: pipelines sum
// gradients, else they are independent.
GroupInstance random_groups(uint64_t seed, bool sums);

// Returns the number of instances per test, which is larger nightly.
uint64_t group_seeds();

// All sets of pipelines on the devices: all chains of each, pools in any order, all micro-batches.
// Counts in flight by medley/schedule.
class AllGroups {
 public:
  explicit AllGroups(const GroupInstance& instance);

  size_t num_chains() const { return chains_.size(); }
  // Returns the shortest step of one pipeline with all micro-batches of a choice.
  std::optional<int64_t> best_pipeline(size_t choice) const;
  // Returns the shortest step of at least `pipelines` pipelines, or nothing if there are none.
  std::optional<int64_t> best(size_t pipelines) const;
  // Returns the most rows that all chains process in a step in parts, under any schedule, as parts
  // of at least `pipelines` pipelines.
  double rows_in_parts(int64_t step, size_t pipelines) const;

 private:
  struct Known {
    size_t choice = 0;
    std::vector<int> devices;
    PipelinePlan plan;
  };
  // [choice, micro-batches] their least times, by [pipelines].
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
