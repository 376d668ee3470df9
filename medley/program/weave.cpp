#include "medley/program/weave.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/calls.h"
#include "medley/program/verify_parts.h"

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
  const auto each = [](FunctionKind kind) {
    return kind == FunctionKind::kBackwardLast ? FunctionKind::kBackward : kind;
  };
  return each(a) == each(b) &&
         (each(a) == FunctionKind::kForward || each(a) == FunctionKind::kBackward);
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

// Follows parts, and what they do to values of the step.
class WeaveVerifier {
 public:
  WeaveVerifier(const LoweredStage& stage, const std::string& place)
      : stage_(stage), place_(place) {}

  void run() {
    for (const Call& call : stage_.calls) {
      check_range(call);
      if (call.begins() && call.ends() && open_.empty()) continue;
      take(call);
      for (const Step& step : steps_of(stage_, call))
        std::visit([&](const auto& each) { follow(call, each); }, step);
      if (call.ends()) open_.erase(call.microbatch);
      if (!open_.empty()) continue;
      read_.clear();
      written_.clear();
      posted_.clear();
    }
    if (!open_.empty()) refuse(open_.begin()->second, "found no end of it, expected all its parts");
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

  // A part that follows what its micro-batch has done so far.
  void take(const Call& call) {
    const auto known = open_.find(call.microbatch);
    const int expected = known == open_.end() ? 0 : known->second.end;
    if (call.first != expected || (known != open_.end() && known->second.function != call.function))
      refuse(call, fmt::format("found steps from {} on, expected {}", call.first, expected));
    if (!open_.empty() && !go_together(open_.begin()->second.function, call.function))
      refuse(call,
             fmt::format("found among the parts of {}, expected that to end before",
                         to_string(open_.begin()->second)));
    if (!find_function(stage_, call.function).assigns.empty())
      refuse(call, "found in parts, expected what replaces values in one");
    open_.insert_or_assign(call.microbatch, call);
  }

  void follow(const Call& call, const Segment& segment) {
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const Op& op = stage_.graph.ops[at(segment.ops[i])];
      for (ValueId value : operands(op)) read(call, value);
      for (ValueId value : op.results) write(call, value);
      for (ValueId value : segment.dies[i]) write(call, value);
    }
  }
  void follow(const Call& call, const Post& post) {
    const Communication& communication = stage_.communications[at(post.communication)];
    for (ValueId value : communication.inputs) read(call, value);
    for (ValueId value : post.dies) write(call, value);
    if (brings_to_microbatch(stage_, communication))
      posted_[post.communication].push_back(call.microbatch);
  }
  void follow(const Call& call, const Wait& wait) {
    const Communication& communication = stage_.communications[at(wait.communication)];
    for (ValueId value : communication.outputs) write(call, value);
    std::deque<int>& posted = posted_[wait.communication];
    if (posted.empty()) return;  // posted by calls before
    if (posted.front() != call.microbatch)
      refuse(call,
             fmt::format("waits for {}, which micro-batch {} has posted before",
                         communication.name,
                         posted.front()));
    posted.pop_front();
  }

  // By value of the step, the last micro-batch that does something to it.
  using Last = std::map<ValueId, int>;

  bool is_of_step(ValueId value) const {
    return value != kNone && stage_.lifetimes[at(value)] != Lifetime::kMicrobatch;
  }
  void read(const Call& call, ValueId value) {
    if (!is_of_step(value)) return;
    expect_behind(call, value, written_);
    note(read_, value, call.microbatch);
  }
  void write(const Call& call, ValueId value) {
    if (!is_of_step(value)) return;
    expect_behind(call, value, written_);
    expect_behind(call, value, read_);
    note(written_, value, call.microbatch);
  }
  void expect_behind(const Call& call, ValueId value, const Last& last) const {
    const auto found = last.find(value);
    if (found != last.end() && found->second > call.microbatch)
      refuse(call,
             fmt::format("uses value {} of the step behind micro-batch {}, expected before it",
                         value,
                         found->second));
  }
  static void note(Last& last, ValueId value, int microbatch) {
    int& known = last.try_emplace(value, microbatch).first->second;
    known = std::max(known, microbatch);
  }

  const LoweredStage& stage_;
  const std::string& place_;
  std::map<int, Call> open_;  // by micro-batch, its last part
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
