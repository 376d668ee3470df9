#pragma once

// In which order a stage receives what other stages send (Communication::lane): a pure function of
// the program. Knows nothing of buffers.

#include <map>
#include <utility>
#include <vector>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/program.h"

namespace medley {

// One transfer that is awaited in a step.
struct Receipt {
  size_t call = 0;  // in which it is awaited
  size_t step = 0;  // of those that the call makes
  int communication = 0;
};

//   calls            F0    F1    B0    F2 ...      lane 0, two values a micro-batch, depth 2
//   awaits           a b   a b         a b
//   posted ahead  a0 b0
//                    a1 b1 ...                     one more each time that one has been awaited
//
// By lane, in the order in which they are sent.
std::map<int, std::vector<Receipt>> receipts(const LoweredStage& stage);

// What a device receives in a step: of every lane, the `depth` transfers after the last that it has
// taken are posted. A `Held` is what the caller has of a transfer that is posted.
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

  // For the next step.
  void restart() {
    for (auto& [number, lane] : lanes_) lane.posted = lane.taken = 0;
  }

  // Calls post(receipt), which returns a Held, for all that can be posted now.
  template <typename Post>
  void post_ahead(const Post& post) {
    for (auto& [number, lane] : lanes_)
      for (; lane.posted < lane.entries.size() && lane.posted - lane.taken < lane.depth;
           ++lane.posted)
        lane.entries[lane.posted].held = post(std::as_const(lane.entries[lane.posted].receipt));
  }

  // Returns what a step of a call awaits, or nothing if it has not been posted.
  const Held* posted(size_t call, size_t step) const {
    const auto [lane, place] = places_.at({call, step});
    return place < lane->posted ? &lane->entries[place].held : nullptr;
  }

  // Returns what a step of a call awaits, which makes room for another in its lane.
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
  // By call and step that await it.
  std::map<std::pair<size_t, size_t>, std::pair<Lane*, size_t>> places_;
};

// Which of a device's streams a communication is on. Those of one stream take place in the order of
// their posts, those of several do not wait for each other: 0 has the collectives of the stage's
// mesh, 1 the sums over stages, each lane has one of its own.
int stream_of(const Communication& communication);
int num_streams(const Program& program);

}  // namespace medley
