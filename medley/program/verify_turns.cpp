// verify_turns(): interleaved parts of calls.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/program/call_parts.h"
#include "medley/program/verify_parts.h"

namespace medley {
namespace {

// Returns whether a call may be between parts of another.
bool may_stand_among(FunctionKind parts, FunctionKind kind) {
  const bool forward = kind == FunctionKind::kForward;
  return is_backward(parts) ? forward || is_backward(kind)
                            : forward && parts == FunctionKind::kForward;
}

// Follows parts and their accesses to values of the step.
class TurnsVerifier {
 public:
  TurnsVerifier(const LoweredStage& stage, std::string place)
      : stage_(stage), place_(std::move(place)) {}

  void run() {
    for (size_t c = 0; c < stage_.calls.size(); ++c) {
      const Call& call = stage_.calls[c];
      check_range(call);
      if (call.begins() && call.ends() && open_.empty()) continue;
      take(c);
      for_each_item(
          steps_of(stage_, call),
          [&](const Item& item, const std::vector<ValueId>& dies) { follow(call, item, dies); });
      if (call.ends()) {
        for (const Assign& assign : find_function(stage_, call.function).assigns) {
          read(call, assign.from);
          write(call, assign.to);
        }
        open_.erase(call.microbatch);
      }
      if (!open_.empty()) continue;
      read_.clear();
      written_.clear();
      posted_.clear();
    }
    if (!open_.empty())
      refuse(open_.begin()->second.part, "found no end of it, expected all its parts");
  }

 private:
  [[noreturn]] void refuse(const Call& call, const std::string& what) const {
    refuse_program(fmt::format("{}: {}", place_, to_string(call)), what);
  }

  void check_range(const Call& call) const {
    const auto size = static_cast<int>(find_function(stage_, call.function).steps.size());
    const int end = call.ends() ? size : call.end;
    if (call.first < 0 || call.first > end || end > size)
      refuse(call, fmt::format("found steps {} to {}, expected some of {}", call.first, end, size));
  }

  // Follows a whole call, or a part that continues its micro-batch.
  void take(size_t number) {
    const Call& call = stage_.calls[number];
    const auto known = open_.find(call.microbatch);
    const int expected = known == open_.end() ? 0 : known->second.part.end;
    if (call.first != expected ||
        (known != open_.end() && known->second.part.function != call.function))
      refuse(call, fmt::format("found steps from {} on, expected {}", call.first, expected));
    for (const auto& [microbatch, open] : open_)
      if (!may_stand_among(open.part.function, call.function))
        refuse(call,
               fmt::format("found among the parts of {}, expected that to end before",
                           to_string(open.part)));
    if (!(call.begins() && call.ends()) && !find_function(stage_, call.function).assigns.empty())
      refuse(call, "found in parts, expected what replaces values in one");
    if (known == open_.end())
      open_.emplace(call.microbatch, Open{call, number});
    else
      known->second.part = call;
  }

  void follow(const Call& call, const Item& item, const std::vector<ValueId>& dies) {
    for (ValueId value : uses(stage_, item)) read(call, value);
    for (ValueId value : definitions(stage_, item)) write(call, value);
    for (ValueId value : dies) write(call, value);
    if (item.kind == Item::Kind::kOp) return;
    const Communication& communication = stage_.communications[at(item.index)];
    std::deque<int>& posted = posted_[item.index];
    if (item.kind == Item::Kind::kPost && brings_to_microbatch(stage_, communication))
      posted.push_back(call.microbatch);
    // The exchanges of earlier calls are not visible here.
    if (item.kind == Item::Kind::kPost || posted.empty()) return;
    if (posted.front() != call.microbatch)
      refuse(call,
             fmt::format("waits for {}, which micro-batch {} has posted before",
                         communication.name,
                         posted.front()));
    posted.pop_front();
  }

  // By value of the step, its last call among those that began last.
  using Last = std::map<ValueId, size_t>;

  bool is_of_step(ValueId value) const {
    return value != kNone && stage_.lifetimes[at(value)] != Lifetime::kMicrobatch;
  }
  void read(const Call& call, ValueId value) {
    if (!is_of_step(value)) return;
    expect_behind(call, value, written_);
    note(read_, value, begin(call));
  }
  void write(const Call& call, ValueId value) {
    if (!is_of_step(value)) return;
    expect_behind(call, value, written_);
    expect_behind(call, value, read_);
    note(written_, value, begin(call));
  }
  void expect_behind(const Call& call, ValueId value, const Last& last) const {
    const auto found = last.find(value);
    if (found != last.end() && found->second > begin(call))
      refuse(call,
             fmt::format("uses value {} of the step behind {}, expected before it",
                         value,
                         to_string(stage_.calls[found->second])));
  }
  static void note(Last& last, ValueId value, size_t begin) {
    size_t& known = last.try_emplace(value, begin).first->second;
    known = std::max(known, begin);
  }
  // Returns the number of its first part: the order of whole calls.
  size_t begin(const Call& call) const { return open_.at(call.microbatch).begin; }

  const LoweredStage& stage_;
  const std::string place_;
  struct Open {
    Call part;  // the last one
    size_t begin;
  };
  std::map<int, Open> open_;  // by micro-batch
  Last read_, written_;
  std::map<int, std::deque<int>> posted_;  // by communication: micro-batches, the oldest first
};

}  // namespace

void verify_turns(const LoweredStage& stage, const std::string& place) {
  TurnsVerifier(stage, place).run();
}

}  // namespace medley
