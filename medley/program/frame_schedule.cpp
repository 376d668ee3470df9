#include "medley/program/frame_schedule.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// What a frame holds, followed through the steps of its calls.
class Contents {
 public:
  explicit Contents(const LoweredStage& stage) : stage_(stage) {}

  void add(ValueId value) {
    if (value != kNone && stage_.lifetimes.at(at(value)) == Lifetime::kMicrobatch)
      values_.insert(value);
  }
  void run(const Function& function) {
    for (const Step& step : function.steps) std::visit(*this, step);
  }
  void operator()(const Segment& segment) {
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      for (ValueId value : stage_.graph.ops.at(at(segment.ops[i])).results) add(value);
      for (ValueId value : segment.dies.at(i)) values_.erase(value);
    }
  }
  void operator()(const Post& post) {
    for (ValueId value : post.dies) values_.erase(value);
  }
  void operator()(const Wait& wait) {
    for (ValueId value : stage_.communications.at(at(wait.communication)).outputs) add(value);
  }
  const std::set<ValueId>& values() const { return values_; }

 private:
  const LoweredStage& stage_;
  std::set<ValueId> values_;
};

// The update is no micro-batch.
int owner(const Call& call) {
  return call.function == FunctionKind::kUpdate ? -1 : call.microbatch;
}

// What is left in a frame by these functions, one after the other.
std::vector<ValueId> leftovers(const LoweredStage& stage,
                               const std::vector<FunctionKind>& functions) {
  Contents contents(stage);
  if (functions.front() != FunctionKind::kUpdate)
    for (const Input& input : stage.graph.inputs) contents.add(input.value);
  for (FunctionKind kind : functions) contents.run(find_function(stage, kind));
  return {contents.values().begin(), contents.values().end()};
}

}  // namespace

FrameSchedule schedule_frames(const LoweredStage& stage) {
  std::map<int, size_t> last;
  for (size_t i = 0; i < stage.calls.size(); ++i) last[owner(stage.calls[i])] = i;
  struct Held {
    int frame;
    std::vector<FunctionKind> functions;
  };
  FrameSchedule schedule;
  std::set<int> free;
  std::map<int, Held> held;
  std::map<std::vector<FunctionKind>, std::vector<ValueId>> left;  // by them: the same for most
  for (size_t i = 0; i < stage.calls.size(); ++i) {
    const int who = owner(stage.calls[i]);
    FrameUse& use = schedule.uses.emplace_back();
    use.begins = !held.contains(who);
    if (use.begins) {
      if (free.empty()) free.insert(schedule.num_frames++);
      held.emplace(who, Held{*free.begin(), {}});
      free.erase(free.begin());
    }
    Held& current = held.at(who);
    if (stage.calls[i].begins()) current.functions.push_back(stage.calls[i].function);
    use.frame = current.frame;
    use.ends = last.at(who) == i;
    if (!use.ends) continue;
    const auto [found, is_new] = left.try_emplace(current.functions);
    if (is_new) found->second = leftovers(stage, current.functions);
    use.leftovers = found->second;
    free.insert(current.frame);
    held.erase(who);
  }
  return schedule;
}

}  // namespace medley
