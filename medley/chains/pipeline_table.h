#pragma once

// Arranges a pipeline request with one choice of micro-batches for the search, with its bounds.
// Private to pipeline*.cpp.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "medley/base/at.h"
#include "medley/chains/pipeline.h"

namespace medley::pipeline {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// With deferred weight gradients, a stage is idle for `fill` during warm-up and drain, less than
// its own time: it computes gradients of earlier micro-batches meanwhile. For equal stages that is
// exact (schedule/deferred_weights.h). With short memory or many micro-batches, `fill` is the time.
struct Option {
  int64_t time = 0, forward = 0, update = 0;  // time: forward and backward; update: with sums
  int64_t fill = 0, stays = 0;                // stays: until the gradient leaves the stage
  int64_t room = 0;                           // in micro-batches; kNever if all ever fit
  int64_t sums = 0, least_update = 0;         // at least; update: with these sums
  int32_t layers = 0, index = 0;              // index: as the source counts them
  int16_t pool = 0, size = 0;                 // size: into `sizes` of the pool
};

// Crossing of a cut, from one pool to another.
struct Crossing {
  int64_t round_trip = 0, occupied = 0;  // both directions and latencies; the longer direction
  int64_t up = 0;                        // with its latency
  BoundaryTimes times;
  bool is_shared = false;  // shares a port with later stages: both take twice as long
};

class Table {
 public:
  // Requests all options. Drops options that another one on at most as many devices dominates.
  // `ignore_memory` makes everything fit.
  Table(const PipelineRequest& request, int choice, bool ignore_memory);

  // Returns the table for `devices`, [pool], and at most as many micro-batches.
  Table on(std::vector<int> devices, int microbatches) const;

  int layers() const { return layers_; }
  int pools() const { return static_cast<int>(devices_.size()); }
  int devices(int pool) const { return devices_[at(pool)]; }
  const std::vector<int>& sizes(int pool) const { return stored_->sizes[at(pool)]; }
  // Devices are counted in units: common divisors of all sizes of a pool. The functions return the
  // units of a pool, of one of its sizes, and of the largest pool.
  int units(int pool) const { return devices_[at(pool)] / stored_->unit[at(pool)]; }
  int units(int pool, size_t size) const {
    return stored_->units[stored_->first_size[at(pool)] + size];
  }
  int most_units() const {
    int most = 0;
    for (int pool = 0; pool < pools(); ++pool) most = std::max(most, units(pool));
    return most;
  }
  int microbatches() const { return microbatches_; }

  // Options of layers [begin, end) on the size-th size of a pool.
  struct Span {
    const Option *first, *last;
    const Option* begin() const { return first; }
    const Option* end() const { return last; }
  };
  Span options(int pool, size_t size, int begin, int end) const {
    const size_t first = cell(pool, size, begin, end);
    return {stored_->options.data() + stored_->begin_of[first],
            stored_->options.data() + stored_->begin_of[first + 1]};
  }
  const Option& option(int64_t index) const { return stored_->options[at(index)]; }
  // Returns kNever if all micro-batches fit.
  int64_t room(const Option& option) const {
    return option.room >= microbatches_ ? kNever : option.room;
  }
  int64_t index_of(const Option& option) const { return &option - stored_->options.data(); }
  const StageOption& offered(const Option& option) const;
  // Returns the least time of stages that end at `end`, [begin]; kNever if none exist.
  const int64_t* least_times(int pool, size_t size, int end) const {
    return stored_->least_time.data() + row(pool, size, end);
  }
  // Return the same for fill, and for how long a micro-batch stays.
  const int64_t* least_fills(int pool, size_t size, int end) const {
    return stored_->least_fill.data() + row(pool, size, end);
  }
  const int64_t* least_stays(int pool, size_t size, int end) const {
    return stored_->least_stay.data() + row(pool, size, end);
  }
  // Return the least of stages that begin at `begin`, [end].
  const int64_t* least_times_of(int pool, size_t size, int begin) const {
    return stored_->least_time_of.data() + row(pool, size, begin);
  }
  const int64_t* least_stays_of(int pool, size_t size, int begin) const {
    return stored_->least_stay_of.data() + row(pool, size, begin);
  }
  // Returns the largest room of stages that end at `end`, [begin].
  const int64_t* most_rooms(int pool, size_t size, int end) const {
    return stored_->most_room.data() + row(pool, size, end);
  }
  // Returns the least time of stages [begin, x) over all x >= end.
  int64_t least_from(int pool, size_t size, int begin, int end) const {
    return stored_->least_from[row(pool, size, begin) + at(end)];
  }
  // Returns the least time of stages that contain layers [begin, end).
  int64_t least_over(int pool, size_t size, int begin, int end) const {
    return least_overs(pool, size, end)[begin];
  }
  // [begin]
  const int64_t* least_overs(int pool, size_t size, int end) const {
    return stored_->least_over.data() + row(pool, size, end);
  }

  // Returns the crossing after layer `end - 1`; null without links in both directions.
  const Crossing* crossing(int from, int to, int end) const {
    const size_t pair = at(from) * devices_.size() + at(to);
    if (!stored_->linked[pair]) return nullptr;
    return &stored_->crossings[pair * at(layers_) + at(end)];
  }

  // Like crossing(), if `from` also has stages after those of `to`. Requires: it is another pool.
  const Crossing* crossing_back(int from, int to, int end) const {
    const Crossing* crossing = this->crossing(from, to, end);
    return crossing && has_one_port(from) ? crossing + stored_->crossings.size() / 2 : crossing;
  }

  bool has_one_port(int pool) const { return stored_->one_port[at(pool)] != 0; }

  // Returns X of pipeline.h between the pools of both ends; kNever without a link.
  int64_t exchange(int first, int last) const {
    return stored_->exchanges[at(first) * devices_.size() + at(last)];
  }
  bool has_exchange() const { return has_exchange_; }
  // Returns whether a chain with last stages on pool `last` may also begin there, with other pools
  // between.
  bool may_come_back(int last) const { return comes_back_[at(last)] != 0; }

  // Returns the least update time of stages with the first layer.
  int64_t least_first_update() const { return stored_->least_first_update; }
  // Returns the least time in which a micro-batch reaches the layer.
  int64_t least_up(int layer) const { return stored_->least_up[at(layer)]; }
  // Returns the least sum of fills over all layers, on any devices.
  int64_t least_sum() const { return least_sum_; }
  // Returns the least sum of stays: the way through all stages and back.
  int64_t least_way() const { return least_way_; }
  // Returns the least extra time of a chain over its stages after this one, under any schedule: one
  // micro-batch in both directions. Later stages may compute deferred weight gradients while the
  // last micro-batch goes back.
  int64_t in_front(int64_t forward, int64_t both) const {
    return stored_->has_deferred_weights ? forward : both;
  }
  int64_t in_front(const Option& option) const { return in_front(option.forward, option.time); }
  // Returns the end of a chain with its first stage's update. `own`: end of the first stage's own
  // work; `end`: of the whole chain. With deferred weight gradients the update overlaps the rest.
  int64_t with_update(int64_t own, int64_t end, int64_t update) const {
    return stored_->has_deferred_weights ? std::max(own + update, end) : end + update;
  }
  // Returns the least of in_front() over stages, [begin].
  const int64_t* least_in_front(int pool, size_t size, int end) const {
    return stored_->least_in_front.data() + row(pool, size, end);
  }
  // Returns an upper bound, in ns, on the step of one micro-batch and so on every period.
  int64_t longest_period() const { return longest_period_; }
  // Returns times of stages and messages, ascending: periods at which more chains are valid.
  const std::vector<int64_t>& steps() const { return stored_->steps; }

 private:
  // Returns the index of the first options; those of the next size follow.
  size_t cell(int pool, size_t size, int begin, int end) const {
    const auto range = at(stored_->range_of[at(begin * (layers_ + 1) + end)]);
    return range * stored_->first_size.back() + stored_->first_size[at(pool)] + size;
  }
  // Options of some layers on all sizes of a pool.
  struct Offered {
    std::vector<Option> options;
    std::vector<StageOption> offered;  // parallel
    int64_t longest = 0;               // forward and backward, ignoring memory
  };
  Offered options_of(const PipelineRequest& request,
                     int choice,
                     bool ignore_memory,
                     StageRange range) const;
  // Returns the row of tables in which entries with the same end are contiguous.
  size_t row(int pool, size_t size, int layer) const {
    const auto n = at(layers_ + 1);
    return ((stored_->first_size[at(pool)] + size) * n + at(layer)) * n;
  }
  void add_options(const PipelineRequest& request, int choice, bool ignore_memory);
  void add_crossings(const PipelineRequest& request, int choice);
  void find_ends(Nanoseconds least_gain);
  void add_bounds();
  void add_bounds(int pool, size_t size);

  // Data that is independent of the number of devices and micro-batches.
  struct Stored {
    std::vector<std::vector<int>> sizes;  // ascending
    std::vector<int> unit;                // [pool] devices per unit
    std::vector<size_t> first_size;       // [pool]; one more than pools
    std::vector<int> units;               // [first_size + size]
    std::vector<Option> options;
    std::vector<StageOption> offered;  // parallel
    std::vector<int> range_of;         // [begin][end] equal for identical stages
    std::vector<int64_t> begin_of;     // [cell]; one more
    // [pool, size][end][begin]
    std::vector<int64_t> least_time, least_over, most_room, least_fill, least_stay, least_in_front;
    std::vector<int64_t> least_from, least_time_of, least_stay_of;  // [pool, size][begin][end]
    std::vector<Crossing> crossings;  // [from][to][end]; then those that take twice as long
    std::vector<char> one_port;       // [pool]
    std::vector<char> linked;         // [from][to]
    std::vector<int64_t> exchanges;   // [first][last]
    std::vector<int64_t> steps, least_up;
    int64_t least_first_update = kNever;
    bool has_deferred_weights = false;
  };
  std::shared_ptr<Stored> stored_;  // shared with on(); immutable after construction
  int layers_ = 0, microbatches_ = 0;
  std::vector<int> devices_;
  bool has_exchange_ = false;
  std::vector<char> comes_back_;  // [pool of the last stage]
  int64_t least_sum_ = kNever, least_way_ = kNever;
  int64_t longest_period_ = 0;
};

// Returns the least period at which a chain covers all layers with free memory and transfers, or
// kNever. Shorter periods have no chain. Requires: counted devices.
int64_t least_period(const Table& table, DeviceUse use);

}  // namespace medley::pipeline
