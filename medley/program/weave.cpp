#include "medley/program/weave.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/verify_parts.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

bool brings_to_microbatch(const LoweredStage& stage, const Communication& communication) {
  return !communication.outputs.empty() &&
         std::ranges::all_of(communication.outputs, [&](ValueId value) {
           return stage.lifetimes[at(value)] == Lifetime::kMicrobatch;
         });
}

// The steps of a function in front of which it is cut.
std::vector<int> cuts(const LoweredStage& stage, const Function& function) {
  std::vector<int> found;
  for (size_t i = 1; i < function.steps.size(); ++i)
    if (const auto* wait = std::get_if<Wait>(&function.steps[i]))
      if (brings_to_microbatch(stage, stage.communications[at(wait->communication)]))
        found.push_back(static_cast<int>(i));
  return found;
}

// Calls of both take turns.
bool go_together(FunctionKind a, FunctionKind b) {
  const bool forward = a == FunctionKind::kForward && b == FunctionKind::kForward;
  return forward || (is_backward(a) && is_backward(b));
}

// Cuts whole calls; as many parts as the one that waits most often has.
std::vector<Call> in_turn(const LoweredStage& stage, std::span<const Call> calls) {
  std::vector<std::vector<int>> of_call;
  size_t most = 0;
  for (const Call& call : calls) {
    of_call.push_back(cuts(stage, find_function(stage, call.function)));
    most = std::max(most, of_call.back().size());
  }
  std::vector<Call> parts;
  for (size_t part = 0; part <= most; ++part)
    for (size_t c = 0; c < calls.size(); ++c) {
      const std::vector<int>& cut = of_call[c];
      if (part > cut.size()) continue;
      Call& call = parts.emplace_back(calls[c]);
      if (part > 0) call.first = cut[part - 1];
      if (part < cut.size()) call.end = cut[part];
    }
  return parts;
}

// Whether a call may stand between parts of another.
bool may_stand_among(FunctionKind parts, FunctionKind kind) {
  return go_together(parts, kind) || (is_backward(parts) && kind == FunctionKind::kForward);
}

// Follows parts, and what they do to values of the step.
class WeaveVerifier {
 public:
  WeaveVerifier(const LoweredStage& stage, const std::string& place)
      : stage_(stage), place_(place) {}

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
        for (const Assign& assign : find_function(stage_, call.function).assigns)
          replace(call, assign);
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

  // A part that follows what its micro-batch has done so far, or a whole call.
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
    // Nothing is here of what calls before have posted.
    if (item.kind == Item::Kind::kPost || posted.empty()) return;
    if (posted.front() != call.microbatch)
      refuse(call,
             fmt::format("waits for {}, which micro-batch {} has posted before",
                         communication.name,
                         posted.front()));
    posted.pop_front();
  }

  void replace(const Call& call, const Assign& assign) {
    read(call, assign.from);
    write(call, assign.to);
  }

  // By value of the step, the last call that does something to it, of those that began last.
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
  // The number of its first part: in this order calls would be whole.
  size_t begin(const Call& call) const { return open_.at(call.microbatch).begin; }

  const LoweredStage& stage_;
  const std::string& place_;
  struct Open {
    Call part;  // the last one
    size_t begin;
  };
  std::map<int, Open> open_;  // by micro-batch
  Last read_, written_;
  std::map<int, std::deque<int>> posted_;  // by communication, micro-batches, the oldest first
};

}  // namespace

void weave(LoweredStage& stage, int at_once) {
  MEDLEY_CHECK(at_once >= 1);
  if (at_once == 1) return;
  std::vector<Call> woven;
  const std::span<const Call> calls(stage.calls);
  for (size_t i = 0, behind = 0; i < calls.size(); i = behind) {
    const FunctionKind kind = calls[i].function;
    behind = i + 1;
    while (find_function(stage, kind).assigns.empty() && behind < calls.size() &&
           behind - i < at(at_once) && go_together(kind, calls[behind].function))
      ++behind;
    if (behind == i + 1) {
      woven.push_back(calls[i]);
      continue;
    }
    const std::vector<Call> parts = in_turn(stage, calls.subspan(i, behind - i));
    woven.insert(woven.end(), parts.begin(), parts.end());
  }
  stage.calls = std::move(woven);
}

void verify_weave(const LoweredStage& stage, const std::string& place) {
  WeaveVerifier(stage, place).run();
}

}  // namespace medley
