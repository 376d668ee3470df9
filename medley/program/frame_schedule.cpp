#include "medley/program/frame_schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "medley/base/at.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

// Returns the micro-batch; the update is none.
int owner(const Call& call) {
  return call.function == FunctionKind::kUpdate ? -1 : call.microbatch;
}

// Returns the values left in a frame by these functions in order.
std::vector<ValueId> leftovers(const LoweredStage& stage,
                               const std::vector<FunctionKind>& functions) {
  std::set<ValueId> values;
  const auto add = [&](ValueId value) {
    if (value != kNone && stage.lifetimes.at(at(value)) == Lifetime::kMicrobatch)
      values.insert(value);
  };
  if (functions.front() != FunctionKind::kUpdate)
    for (const Input& input : stage.graph.inputs) add(input.value);
  for (FunctionKind kind : functions)
    for_each_item(find_function(stage, kind).steps,
                  [&](const Item& item, const std::vector<ValueId>& dies) {
                    std::ranges::for_each(definitions(stage, item), add);
                    for (ValueId value : dies) values.erase(value);
                  });
  return {values.begin(), values.end()};
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
  // Leftovers by function sequence, mostly equal.
  std::map<std::vector<FunctionKind>, std::vector<ValueId>> left;
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
