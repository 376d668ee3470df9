#pragma once

// The numbers of a pipeline request for one choice of micro-batches, laid out for the search, and
// what bounds it. Private to pipeline*.cpp.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "medley/base/at.h"
#include "medley/chains/pipeline.h"

namespace medley::pipeline {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// Where gradients of weights come late, a stage is idle for less than its own time while a pipeline
// fills and empties: for `fill`, as if it made them for micro-batches of before while it waits. Of
// equal stages that is exact (schedule/late_weights.h). Where memory is short, or micro-batches are
// many, it is the time.
struct Option {
  int64_t time = 0, forward = 0, update = 0;  // time: forward and backward; update: with sums
  int64_t fill = 0, stays = 0;                // stays: until it has gone back to the stage before
  int64_t room = 0;                           // of micro-batches; kNever if all ever fit
  int64_t sums = 0, least_update = 0;         // at least; update: with these sums
  int32_t layers = 0, index = 0;              // index: as the source counts them
  int16_t pool = 0, size = 0;                 // size: into `sizes` of the pool
};

// Over a cut, from one pool to another.
struct Crossing {
  int64_t round_trip = 0, occupied = 0;  // both directions and latencies; the longer direction
  int64_t up = 0;                        // with its latency
  BoundaryTimes times;
  bool is_shared = false;  // of a port with stages behind: both take twice as long
};

class Table {
 public:
  // Asks for all options. Those that another one on as many devices or fewer is never worse than
  // are dropped. `ignore_memory` finds room for everything.
  Table(const PipelineRequest& request, int choice, bool ignore_memory);

  // On some of the devices only, [pool], with another number of micro-batches, at most as many.
  Table on(std::vector<int> devices, int microbatches) const;

  int layers() const { return layers_; }
  int pools() const { return static_cast<int>(devices_.size()); }
  int devices(int pool) const { return devices_[at(pool)]; }
  const std::vector<int>& sizes(int pool) const { return stored_->sizes[at(pool)]; }
  // Searches count devices in what all sizes of a pool are multiples of: of a pool, of a size of
  // it, and of the largest pool.
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

  // Of layers [begin, end) on the size-th size of a pool.
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
  // kNever if all micro-batches fit.
  int64_t room(const Option& option) const {
    return option.room >= microbatches_ ? kNever : option.room;
  }
  int64_t index_of(const Option& option) const { return &option - stored_->options.data(); }
  const StageOption& offered(const Option& option) const;
  // Of all that end there, the least time, [begin]; kNever: there are none.
  const int64_t* least_times(int pool, size_t size, int end) const {
    return stored_->least_time.data() + row(pool, size, end);
  }
  // The same of their fill, and of how long a micro-batch stays.
  const int64_t* least_fills(int pool, size_t size, int end) const {
    return stored_->least_fill.data() + row(pool, size, end);
  }
  const int64_t* least_stays(int pool, size_t size, int end) const {
    return stored_->least_stay.data() + row(pool, size, end);
  }
  // Of all that begin there, [end].
  const int64_t* least_times_of(int pool, size_t size, int begin) const {
    return stored_->least_time_of.data() + row(pool, size, begin);
  }
  const int64_t* least_stays_of(int pool, size_t size, int begin) const {
    return stored_->least_stay_of.data() + row(pool, size, begin);
  }
  // The most room of them, [begin].
  const int64_t* most_rooms(int pool, size_t size, int end) const {
    return stored_->most_room.data() + row(pool, size, end);
  }
  // The least time of stages [begin, x) for any x >= end: beyond it no stage is as short.
  int64_t least_from(int pool, size_t size, int begin, int end) const {
    return stored_->least_from[row(pool, size, begin) + at(end)];
  }
  // The least time of any stage that has at least layers [begin, end).
  int64_t least_over(int pool, size_t size, int begin, int end) const {
    return least_overs(pool, size, end)[begin];
  }
  // [begin]
  const int64_t* least_overs(int pool, size_t size, int end) const {
    return stored_->least_over.data() + row(pool, size, end);
  }

  // After layer `end - 1`. Null if there is no link in both directions.
  const Crossing* crossing(int from, int to, int end) const {
    const size_t pair = at(from) * devices_.size() + at(to);
    if (!stored_->linked[pair]) return nullptr;
    return &stored_->crossings[pair * at(layers_) + at(end)];
  }

  // The same where `from` has stages behind those of `to`, too. Requires: it is another pool.
  const Crossing* crossing_back(int from, int to, int end) const {
    const Crossing* crossing = this->crossing(from, to, end);
    return crossing && has_one_port(from) ? crossing + stored_->crossings.size() / 2 : crossing;
  }

  bool has_one_port(int pool) const { return stored_->one_port[at(pool)] != 0; }

  // X of pipeline.h between the pools of the first and the last stage; kNever: they have no link.
  int64_t exchange(int first, int last) const {
    return stored_->exchanges[at(first) * devices_.size() + at(last)];
  }
  bool has_exchange() const { return has_exchange_; }
  // Whether a chain of last stages on that pool may have its first ones there, too, with others
  // between.
  bool may_come_back(int last) const { return comes_back_[at(last)] != 0; }

  // No stage with the first layer updates in less.
  int64_t least_first_update() const { return stored_->least_first_update; }
  // How long a micro-batch takes at least to get to the layer.
  int64_t least_up(int layer) const { return stored_->least_up[at(layer)]; }
  // The least sum of what stages fill that all layers can have, on any devices.
  int64_t least_sum() const { return least_sum_; }
  // The same of how long a micro-batch stays: its way through all stages and back.
  int64_t least_way() const { return least_way_; }
  // How much longer, under any schedule, a chain takes at least than its stages behind this one and
  // that cut: by what is done for a micro-batch in both directions. Where gradients of weights may
  // come late, those behind may make them while the last micro-batch goes back.
  int64_t in_front(int64_t forward, int64_t both) const {
    return stored_->has_late_weights ? forward : both;
  }
  int64_t in_front(const Option& option) const { return in_front(option.forward, option.time); }
  // The end of a chain whose first stage this is, with its update: of what it does by itself,
  // `own`, and of the whole chain, `end`. It updates while those behind still make gradients of
  // weights.
  int64_t with_update(int64_t own, int64_t end, int64_t update) const {
    return stored_->has_late_weights ? std::max(own + update, end) : end + update;
  }
  // The least of stages, [begin].
  const int64_t* least_in_front(int pool, size_t size, int end) const {
    return stored_->least_in_front.data() + row(pool, size, end);
  }
  // No step is longer than this many nanoseconds but for its micro-batches.
  int64_t longest_period() const { return longest_period_; }
  // Times of stages and messages, ascending: where chains become possible as the period grows.
  const std::vector<int64_t>& steps() const { return stored_->steps; }

 private:
  // Where options begin; those of the next size follow.
  size_t cell(int pool, size_t size, int begin, int end) const {
    const auto range = at(stored_->range_of[at(begin * (layers_ + 1) + end)]);
    return range * stored_->first_size.back() + stored_->first_size[at(pool)] + size;
  }
  // Of some layers on all sizes of a pool.
  struct Offered {
    std::vector<Option> options;
    std::vector<StageOption> offered;  // parallel
    int64_t longest = 0;               // forward and backward, whether there is room or not
  };
  Offered options_of(const PipelineRequest& request,
                     int choice,
                     bool ignore_memory,
                     StageRange range) const;
  // Of tables in which what belongs to one of its ends lies together.
  size_t row(int pool, size_t size, int layer) const {
    const auto n = at(layers_ + 1);
    return ((stored_->first_size[at(pool)] + size) * n + at(layer)) * n;
  }
  void add_options(const PipelineRequest& request, int choice, bool ignore_memory);
  void add_crossings(const PipelineRequest& request, int choice);
  void find_ends(Nanoseconds least_gain);
  void add_bounds();
  void add_bounds(int pool, size_t size);

  // What does not depend on how many devices and micro-batches there are.
  struct Stored {
    std::vector<std::vector<int>> sizes;  // ascending
    std::vector<int> unit;                // [pool] devices that are counted as one
    std::vector<size_t> first_size;       // [pool]; one more than pools
    std::vector<int> units;               // [first_size + size]
    std::vector<Option> options;
    std::vector<StageOption> offered;  // parallel
    std::vector<int> range_of;         // [begin][end] the same number where stages are alike
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
    bool has_late_weights = false;
  };
  std::shared_ptr<Stored> stored_;  // with on(); not changed once the table is made
  int layers_ = 0, microbatches_ = 0;
  std::vector<int> devices_;
  bool has_exchange_ = false;
  std::vector<char> comes_back_;  // [pool of the last stage]
  int64_t least_sum_ = kNever, least_way_ = kNever;
  int64_t longest_period_ = 0;
};

// The least period with which some chain could cover all layers if memory and transfers were for
// nothing, or kNever: what this does not reach, no chain can. Requires: counted devices.
int64_t least_period(const Table& table, DeviceUse use);

}  // namespace medley::pipeline
