#pragma once

// The order in which a stage receives values from other stages (Communication::lane): a pure
// function of the program. Knows nothing of buffers.

#include <map>
#include <utility>
#include <vector>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/program.h"

namespace medley {

// One awaited transfer of a step.
struct Receipt {
  size_t call = 0;  // the awaiting one
  size_t step = 0;  // in the call
  int communication = 0;
};

//   calls            F0    F1    B0    F2 ...      lane 0, two values a micro-batch, depth 2
//   awaits           a b   a b         a b
//   posted ahead  a0 b0
//                    a1 b1 ...                     one more after each wait
//
// Returns receipts by lane, in the order of sending.
std::map<int, std::vector<Receipt>> receipts(const LoweredStage& stage);

// The receives of a device in a step: every lane has `depth` transfers posted after the last taken
// one. A `Held` is the caller's handle of a posted transfer.
template <typename Held>
class Receiving {
 public:
  explicit Receiving(const LoweredStage& stage) {
    for (const auto& [number, all] : receipts(stage)) {
      const auto first = at(all.front().communication);
      Lane& lane = lanes_[number];
      lane.depth = at(stage.communications[first].depth);
      for (const Receipt& receipt : all) {
        places_[{receipt.call, receipt.step}] = {&lane, lane.entries.size()};
        lane.entries.push_back({receipt, Held{}});
      }
    }
  }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;

  // Starts the next step.
  void restart() {
    for (auto& [number, lane] : lanes_) lane.posted = lane.taken = 0;
  }

  // Calls post(receipt), which returns a Held, for all transfers that can be posted now.
  template <typename Post>
  void post_ahead(const Post& post) {
    for (auto& [number, lane] : lanes_)
      for (; lane.posted < lane.entries.size() && lane.posted - lane.taken < lane.depth;
           ++lane.posted)
        lane.entries[lane.posted].held = post(std::as_const(lane.entries[lane.posted].receipt));
  }

  // Returns the transfer that a step of a call awaits, or nothing if it has not been posted.
  const Held* posted(size_t call, size_t step) const {
    const auto [lane, place] = places_.at({call, step});
    return place < lane->posted ? &lane->entries[place].held : nullptr;
  }

  // Returns the transfer that a step of a call awaits, and frees its place in the lane.
  Held take(size_t call, size_t step) {
    const auto [lane, place] = places_.at({call, step});
    MEDLEY_CHECK(place < lane->posted);
    ++lane->taken;
    return std::move(lane->entries[place].held);
  }

 private:
  struct Entry {
    Receipt receipt;
    Held held;
  };
  struct Lane {
    std::vector<Entry> entries;
    size_t depth = 1, posted = 0, taken = 0;
  };
  std::map<int, Lane> lanes_;
  // By the call and step that await it.
  std::map<std::pair<size_t, size_t>, std::pair<Lane*, size_t>> places_;
};

// Returns the stream of a communication on a device. One stream runs in posting order; several are
// independent: 0 has the collectives of the stage's mesh, 1 the sums over stages, and each lane has
// its own.
int stream_of(const Communication& communication);
int num_streams(const Program& program);

}  // namespace medley
