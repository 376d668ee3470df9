#include "medley/sim/stage_times.h"

#include <algorithm>
#include <map>

#include "medley/base/at.h"
#include "medley/program/call_parts.h"
#include "medley/sim/prices.h"

namespace medley {
namespace {

class Walk {
 public:
  Walk(const LoweredStage& stage, const CostModel& costs, int device)
      : stage_(stage), device_(device), segments_(stage, costs), communications_(stage, costs) {}

  // Returns the time of a function from here on; 0 if the stage has none.
  Nanoseconds take(FunctionKind kind) {
    const Function* found = find(kind);
    if (!found) return {};
    const Nanoseconds start = clock_;
    const Visitor visitor{
        [&](const Segment& segment) { clock_ += segments_.price(segment, 0, device_).time; },
        [&](const Post& post) { this->post(post.communication); },
        [&](const Wait& wait) {
          if (const auto done = done_.find(wait.communication); done != done_.end())
            clock_ = std::max(clock_, done->second);
        }};
    for (const Step& step : found->steps) std::visit(visitor, step);
    return clock_ - start;
  }

  // Returns the time of the function's ops that no transfer needs. Returns 0 if it has none, or
  // devices of the stage communicate in parallel with these ops.
  Nanoseconds unneeded(FunctionKind kind) {
    const Function* found = find(kind);
    if (!found) return {};
    const std::vector<Item> items = items_of(found->steps);
    bool sends = false;
    for (const Item& item : items) {
      if (item.kind != Item::Kind::kPost) continue;
      const Communication& communication = stage_.communications[at(item.index)];
      if (communication.devices.empty()) return {};
      sends |= only_sends(communication);
    }
    if (!sends) return {};
    const std::vector<bool> needed = needed_by_transfers(stage_, items);
    Nanoseconds sum;
    size_t item = 0;
    for (const Step& step : found->steps) {
      const auto* segment = std::get_if<Segment>(&step);
      if (!segment) {
        ++item;
        continue;
      }
      Nanoseconds before;
      for (const Nanoseconds end : segments_.price(*segment, 0, device_).ends) {
        if (!needed[item++]) sum += end - before;
        before = end;
      }
    }
    return sum;
  }

 private:
  const Function* find(FunctionKind kind) const {
    const auto found = std::ranges::find(stage_.functions, kind, &Function::kind);
    return found == stage_.functions.end() ? nullptr : &*found;
  }
  void post(int communication) {
    if (!stage_.communications[at(communication)].devices.empty()) return;
    network_ = std::max(network_, clock_) + communications_.with_others(communication, 0, device_);
    done_[communication] = network_;
  }

  const LoweredStage& stage_;
  const int device_;
  SegmentPrices segments_;
  CommunicationPrices communications_;
  Nanoseconds clock_, network_;      // end of the device's ops, of its communications
  std::map<int, Nanoseconds> done_;  // communication -> its end
};

}  // namespace

FunctionTimes time_functions(const LoweredStage& stage, const CostModel& costs, int device) {
  Walk walk(stage, costs, device);
  FunctionTimes times;
  Nanoseconds last_prologue;
  for (int k = 0; k < kPrologues; ++k) {
    times.prologue += walk.take(prologue_kind(k, false));
    last_prologue += walk.take(prologue_kind(k, true));
  }
  if (stage.tables.size() == 1) times.prologue = last_prologue;
  times.update = last_prologue - times.prologue;
  times.forward = walk.take(FunctionKind::kForward);
  times.backward = walk.take(FunctionKind::kBackward);
  const Nanoseconds last = walk.take(FunctionKind::kBackwardLast);
  if (stage.tables.size() == 1) times.backward = last;
  times.weights = std::min(times.backward,
                           walk.unneeded(stage.tables.size() == 1 ? FunctionKind::kBackwardLast
                                                                  : FunctionKind::kBackward));
  times.update += std::max(Nanoseconds{}, last - times.backward) + walk.take(FunctionKind::kUpdate);
  return times;
}

}  // namespace medley
