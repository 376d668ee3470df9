#include "medley/program/memory.h"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "medley/base/error.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

const char* name(FunctionKind kind) {
  switch (kind) {
    case FunctionKind::kPrologue:
    case FunctionKind::kPrologueLast:
      return "prologue";
    case FunctionKind::kForward:
      return "forward";
    case FunctionKind::kBackward:
    case FunctionKind::kBackwardLast:
      return "backward";
    case FunctionKind::kUpdate:
      return "update";
  }
  return "";
}

class MemoryFollower {
 public:
  MemoryFollower(const LoweredStage& stage, int device) : stage_(stage), device_(device) {}

  MemoryUse run() {
    for (const Input& input : stage_.graph.inputs)
      if (lifetime(input.value) == Lifetime::kRun) hold(input.value, 0, fresh(input.value, 0));
    use_.persistent = live_;
    use_.peak = live_;
    for (int m = 0; m < static_cast<int>(stage_.tables.size()); ++m)
      for (const Input& input : stage_.graph.inputs)
        if (input.kind == InputKind::kBatch) hold(input.value, m, fresh(input.value, m));
    for (const Call& call : stage_.calls)
      for (const Function& function : stage_.functions)
        if (function.kind == call.function) follow(function, call);
    return use_;
  }

 private:
  // Storage that several values may share; counts itself as alive.
  struct Storage {
    Storage(int64_t& total, int64_t size) : live(total), bytes(size) { live += bytes; }
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    ~Storage() { live -= bytes; }
    int64_t& live;
    int64_t bytes;
  };
  using Held = std::shared_ptr<Storage>;

  Lifetime lifetime(ValueId value) const { return stage_.lifetimes[static_cast<size_t>(value)]; }
  std::pair<int, ValueId> key(ValueId value, int microbatch) const {
    return {lifetime(value) == Lifetime::kMicrobatch ? microbatch : -1, value};
  }
  void hold(ValueId value, int microbatch, Held storage) {
    held_[key(value, microbatch)] = std::move(storage);
  }

  Held fresh(ValueId value, int microbatch) {
    const auto& table =
        stage_.tables[static_cast<size_t>(microbatch)][static_cast<size_t>(device_)];
    return std::make_shared<Storage>(
        live_, num_bytes(stage_.graph.values[static_cast<size_t>(value)].type, table));
  }

  void note(const Call& call, const std::string& what) {
    if (live_ <= use_.peak) return;
    use_.peak = live_;
    use_.peak_at = fmt::format("{} {}, {}", name(call.function), call.microbatch, what);
  }

  void follow(const Function& function, const Call& call) {
    for (const Step& step : function.steps) {
      if (const auto* segment = std::get_if<Segment>(&step)) follow(*segment, call);
      if (const auto* post = std::get_if<Post>(&step)) {
        const Communication& communication =
            stage_.communications[static_cast<size_t>(post->communication)];
        // An all-reduce of what dies happens in place.
        const bool in_place = communication.kind == CommunicationKind::kAllReduce &&
                              post->dies.size() == communication.inputs.size();
        for (size_t i = 0; i < communication.outputs.size(); ++i)
          received_[communication.outputs[i]] =
              in_place ? held_[key(communication.inputs[i], call.microbatch)]
                       : fresh(communication.outputs[i], call.microbatch);
        note(call, communication.name);
        for (ValueId value : post->dies) held_.erase(key(value, call.microbatch));
      }
      if (const auto* wait = std::get_if<Wait>(&step))
        for (ValueId value :
             stage_.communications[static_cast<size_t>(wait->communication)].outputs) {
          hold(value, call.microbatch, received_[value]);
          received_.erase(value);
        }
    }
    for (const Assign& assign : function.assigns) {
      hold(assign.to, 0, held_[key(assign.from, call.microbatch)]);
      if (lifetime(assign.from) == Lifetime::kStep) held_.erase(key(assign.from, call.microbatch));
    }
  }

  void follow(const Segment& segment, const Call& call) {
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const Op& op = stage_.graph.ops[static_cast<size_t>(segment.ops[i])];
      const bool adds = op.name == "medley.accumulate.default";
      for (size_t r = 0; r < op.results.size(); ++r) {
        const ValueId result = op.results[r];
        if (result == kNone) continue;
        const ValueId alias = storage_operand(op, r);
        if (adds && held_.contains(key(result, call.microbatch))) continue;
        hold(result,
             call.microbatch,
             alias != kNone ? held_[key(alias, call.microbatch)] : fresh(result, call.microbatch));
      }
      note(call, fmt::format("{}{}{}", op.module, op.module.empty() ? "" : ": ", op.name));
      for (ValueId value : segment.dies[i]) held_.erase(key(value, call.microbatch));
    }
  }

  const LoweredStage& stage_;
  const int device_;
  int64_t live_ = 0;
  MemoryUse use_;
  std::map<std::pair<int, ValueId>, Held> held_;
  std::map<ValueId, Held> received_;
};

}  // namespace

MemoryUse memory_use(const LoweredStage& stage, int device) {
  return MemoryFollower(stage, device).run();
}

}  // namespace medley
