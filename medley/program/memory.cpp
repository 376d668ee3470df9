#include "medley/program/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/graph/replace_bf16.h"
#include "medley/ops/rule.h"
#include "medley/ops/update_ops.h"
#include "medley/program/calls.h"
#include "medley/program/frame_schedule.h"
#include "medley/program/lanes.h"
#include "medley/program/overwritten.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

// Storage that several values may share; counted as alive while anybody holds it.
class Storages {
 public:
  // `computed`: what kernels may write over, as it is not part of anything else.
  int add(int64_t bytes, MemoryPart part, bool computed = false) {
    items_.push_back({bytes, 1, part, computed});
    count(items_.back(), 1);
    return static_cast<int>(items_.size()) - 1;
  }
  int hold(int storage) {
    ++items_[at(storage)].holders;
    return storage;
  }
  void drop(int& storage) {
    if (storage == kNone) return;
    Item& item = items_[at(storage)];
    if (--item.holders == 0) count(item, -1);
    storage = kNone;
  }
  void move_to(int storage, MemoryPart part) {
    Item& item = items_[at(storage)];
    count(item, -1);
    item.part = part;
    count(item, 1);
  }
  int64_t bytes(int storage) const { return items_[at(storage)].bytes; }
  bool shared(int storage) const { return items_[at(storage)].holders > 1; }
  MemoryPart part(int storage) const { return items_[at(storage)].part; }
  // Whether its only holder may leave it to a value of so many bytes.
  bool may_be_left(int storage, int64_t bytes) const {
    const Item& item = items_[at(storage)];
    return item.computed && item.holders == 1 && item.bytes == bytes;
  }
  int64_t live() const { return live_; }
  const MemoryParts& parts() const { return parts_; }

 private:
  struct Item {
    int64_t bytes;
    int holders;
    MemoryPart part;
    bool computed;
  };
  void count(const Item& item, int64_t sign) {
    live_ += sign * item.bytes;
    parts_[at(item.part)] += sign * item.bytes;
  }
  std::vector<Item> items_;
  int64_t live_ = 0;
  MemoryParts parts_{};
};

MemoryPart part_of(const Input& input) {
  switch (input.kind) {
    case InputKind::kParameter:
      return MemoryPart::kParameters;
    case InputKind::kState:
      return input.name.starts_with("master:") ? MemoryPart::kMasters : MemoryPart::kOptimizer;
    case InputKind::kBatch:
    case InputKind::kReceived:
      return MemoryPart::kBatch;
    case InputKind::kBuffer:
    case InputKind::kScalar:
      break;
  }
  return MemoryPart::kBuffers;
}

// kMicrobatch values that die in the backward function, but come from before it.
std::vector<bool> saved_values(const LoweredStage& stage) {
  std::vector<bool> saved(stage.graph.values.size(), false);
  for (const Function& function : stage.functions) {
    if (!is_backward(function.kind)) continue;
    std::set<ValueId> made;
    for_each_item(function.steps, [&](const Item& item, const std::vector<ValueId>& dies) {
      const std::vector<ValueId>& own = definitions(stage, item);
      made.insert(own.begin(), own.end());
      for (ValueId value : dies)
        if (!made.contains(value)) saved[at(value)] = true;
    });
  }
  return saved;
}

// The symbols that sizes of values depend on. Others, such as where a shard begins, do not matter.
std::vector<size_t> symbols_of_sizes(const LoweredStage& stage) {
  std::vector<bool> used;
  for (const Value& value : stage.graph.values)
    for (const Size& size : value.type.shape)
      for (Symbol symbol : size.symbols) {
        if (at(symbol) >= used.size()) used.resize(at(symbol) + 1);
        used[at(symbol)] = true;
      }
  std::vector<size_t> symbols;
  for (size_t symbol = 0; symbol < used.size(); ++symbol)
    if (used[symbol]) symbols.push_back(symbol);
  return symbols;
}

// [op][result] the value whose storage it takes.
std::vector<std::vector<ValueId>> storage_operands(const Graph& graph) {
  std::vector<std::vector<ValueId>> all;
  for (const Op& op : graph.ops) {
    std::vector<ValueId>& operands = all.emplace_back();
    for (size_t r = 0; r < op.results.size(); ++r) operands.push_back(storage_operand(op, r));
  }
  return all;
}

// [op] the operands whose place its result may take.
std::vector<std::array<ValueId, 2>> overwritable_operands(const LoweredStage& stage) {
  std::vector<std::array<ValueId, 2>> all;
  for (const Op& op : stage.graph.ops) all.push_back(overwritable(stage, op));
  return all;
}

// [op]
std::vector<bool> accumulating(const Graph& graph) {
  std::vector<bool> all;
  for (const Op& op : graph.ops) all.push_back(accumulates(op));
  return all;
}

int64_t workspace(const LoweredStage& stage, int device) {
  return stage.workspaces.empty() ? 0 : stage.workspaces[at(device)];
}

// What is the same on all devices of a stage.
struct StageFacts {
  explicit StageFacts(const LoweredStage& stage)
      : saved(saved_values(stage)),
        aliases(storage_operands(stage.graph)),
        overwritable(overwritable_operands(stage)),
        accumulating(medley::accumulating(stage.graph)),
        symbols(symbols_of_sizes(stage)),
        schedule(schedule_frames(stage)) {}
  std::vector<bool> saved;                           // [value]
  std::vector<std::vector<ValueId>> aliases;         // [op][result]
  std::vector<std::array<ValueId, 2>> overwritable;  // [op]
  std::vector<bool> accumulating;                    // [op]
  std::vector<size_t> symbols;                       // of sizes
  FrameSchedule schedule;
};

// [value] bytes on one device, for each micro-batch; micro-batches of equal lengths have one table.
class ByteTables {
 public:
  ByteTables(const LoweredStage& stage, const std::vector<size_t>& symbols, int device) {
    std::map<std::vector<int64_t>, size_t> known;
    for (const auto& of_microbatch : stage.tables) {
      const std::vector<int64_t>& lengths = of_microbatch[at(device)];
      std::vector<int64_t> key;
      for (size_t symbol : symbols) key.push_back(lengths[symbol]);
      const auto [found, is_new] = known.try_emplace(std::move(key), tables_.size());
      of_.push_back(found->second);
      if (!is_new) continue;
      std::vector<int64_t>& bytes = tables_.emplace_back();
      for (const Value& value : stage.graph.values)
        bytes.push_back(num_bytes(replace_bf16(value.type, bf16_as(stage, at(device))), lengths));
      for (const Input& input : stage.graph.inputs)
        bytes[at(input.value)] = num_bytes(type_of(stage.graph, input.value), lengths);
    }
  }
  int64_t operator()(ValueId value, int microbatch) const {
    return tables_[of_[at(microbatch)]][at(value)];
  }

 private:
  std::vector<size_t> of_;  // [microbatch] into tables_
  std::vector<std::vector<int64_t>> tables_;
};

class MemoryFollower {
 public:
  MemoryFollower(const LoweredStage& stage,
                 const StageFacts& facts,
                 int device,
                 std::vector<MemoryPoint>* points)
      : stage_(stage),
        device_(device),
        bytes_(stage, facts.symbols, device),
        points_(points),
        saved_(facts.saved),
        aliases_(facts.aliases),
        overwritable_(facts.overwritable),
        accumulating_(facts.accumulating),
        schedule_(facts.schedule),
        run_(stage.graph.values.size(), kNone),
        in_flight_(stage.communications.size()),
        receiving_(stage),
        batch_(stage.tables.size()) {
    frames_.assign(at(schedule_.num_frames), std::vector<int>(run_.size(), kNone));
    use_.saved.resize(stage.tables.size());
  }

  MemoryUse run() {
    for (const Input& input : stage_.graph.inputs)
      if (lifetime(input.value) == Lifetime::kRun)
        run_[at(input.value)] = storages_.add(bytes_(input.value, 0), part_of(input));
    use_.persistent = storages_.live();
    storages_.add(workspace(stage_, device_), MemoryPart::kWorkspaces);
    for (size_t m = 0; m < batch_.size(); ++m)
      for (const Input& input : stage_.graph.inputs)
        if (lifetime(input.value) == Lifetime::kMicrobatch)
          batch_[m].emplace_back(
              input.value,
              storages_.add(bytes_(input.value, static_cast<int>(m)), MemoryPart::kBatch));
    note("the batch");
    receive_ahead();
    note("what is received ahead");
    for (point_.call = 0; point_.call < stage_.calls.size(); ++point_.call) follow_call();
    return std::move(use_);
  }

 private:
  struct InFlight {
    std::vector<int> inputs, outputs;
  };

  const Call& call() const { return stage_.calls[point_.call]; }
  Lifetime lifetime(ValueId value) const { return stage_.lifetimes[at(value)]; }
  int64_t bytes(ValueId value) const { return bytes_(value, call().microbatch); }
  int& slot(ValueId value) {
    if (lifetime(value) != Lifetime::kMicrobatch) return run_[at(value)];
    return frames_[at(schedule_.uses[point_.call].frame)][at(value)];
  }
  // Takes over one hold.
  void put(ValueId value, int storage) {
    int& place = slot(value);
    storages_.drop(place);
    place = storage;
    if (lifetime(value) == Lifetime::kStep) storages_.move_to(storage, MemoryPart::kGradients);
    const MemoryPart part = storages_.part(storage);
    if (part == MemoryPart::kTransient || part == MemoryPart::kCommunication)
      storages_.move_to(storage, saved_[at(value)] ? MemoryPart::kSaved : MemoryPart::kTransient);
  }

  void note(const std::string& what) {
    if (storages_.live() <= use_.peak) return;
    use_.peak = storages_.live();
    use_.at_peak = storages_.parts();
    use_.peak_at = what;
  }
  template <typename What>
  void note_step(const What& what) {
    point_.during = storages_.live();
    if (storages_.live() > use_.peak) note(fmt::format("{}, {}", to_string(call()), what()));
  }
  void end_point() {
    if (!points_) return;
    point_.after = storages_.live();
    points_->push_back(point_);
  }

  void follow_call() {
    const FrameUse& use = schedule_.uses[point_.call];
    if (use.begins && call().function != FunctionKind::kUpdate) {
      for (auto& [value, storage] : batch_[at(call().microbatch)]) put(value, storage);
      batch_[at(call().microbatch)].clear();
    }
    const Function& function = find_function(stage_, call().function);
    const std::span<const Step> steps = steps_of(function, call());
    for (point_.step = 0; point_.step < steps.size(); ++point_.step) {
      const Step& step = steps[point_.step];
      point_.op = 0;
      if (const auto* segment = std::get_if<Segment>(&step)) follow(*segment);
      if (const auto* post = std::get_if<Post>(&step)) follow(*post);
      if (const auto* wait = std::get_if<Wait>(&step)) follow(*wait);
    }
    if (!call().ends()) return;
    // A new value takes the place of the old one.
    for (const Assign& assign : function.assigns)
      if (storages_.bytes(slot(assign.to)) != storages_.bytes(slot(assign.from)))
        put(assign.to, storages_.hold(slot(assign.from)));
    for (ValueId value : use.leftovers) storages_.drop(slot(value));
    if (call().function == FunctionKind::kForward) use_.saved[at(call().microbatch)] = saved_now();
  }

  int64_t saved_now() const {
    std::set<int> seen;
    int64_t sum = 0;
    for (int storage : frames_[at(schedule_.uses[point_.call].frame)])
      if (storage != kNone && storages_.part(storage) == MemoryPart::kSaved &&
          seen.insert(storage).second)
        sum += storages_.bytes(storage);
    return sum;
  }

  void follow(const Segment& segment) {
    for (point_.op = 0; point_.op < segment.ops.size(); ++point_.op) {
      const Op& op = stage_.graph.ops[at(segment.ops[point_.op])];
      const bool adds = accumulating_[at(segment.ops[point_.op])];
      for (size_t r = 0; r < op.results.size(); ++r) {
        const ValueId result = op.results[r];
        if (result == kNone || (adds && slot(result) != kNone)) continue;
        const ValueId alias = aliases_[at(segment.ops[point_.op])][r];
        const int shared = alias == kNone ? left_storage(segment, result) : slot(alias);
        put(result,
            shared != kNone ? storages_.hold(shared)
                            : storages_.add(bytes(result), MemoryPart::kTransient, true));
      }
      note_step(
          [&] { return fmt::format("{}{}{}", op.module, op.module.empty() ? "" : ": ", op.name); });
      for (ValueId value : segment.dies[point_.op]) storages_.drop(slot(value));
      end_point();
    }
  }

  // The storage of the operand that the result of the op at hand is written over, or kNone.
  int left_storage(const Segment& segment, ValueId result) {
    const ValueId operand =
        overwritten(overwritable_[at(segment.ops[point_.op])], segment.dies[point_.op]);
    const int storage = operand == kNone ? kNone : slot(operand);
    if (storage == kNone || !storages_.may_be_left(storage, bytes(result))) return kNone;
    storages_.move_to(storage, MemoryPart::kTransient);
    return storage;
  }

  void follow(const Post& post) {
    const Communication& communication = stage_.communications[at(post.communication)];
    const bool reduces = communication.kind == CommunicationKind::kAllReduce;
    const bool may_be_in_place = reduces && communication.inputs.size() == 1;
    if (only_sends(communication)) return send(communication, post);
    InFlight& in_flight = in_flight_[at(post.communication)].emplace_back();
    for (ValueId value : communication.inputs)
      in_flight.inputs.push_back(storages_.hold(slot(value)));
    const auto take_outputs = [&] {
      for (ValueId value : communication.outputs)
        in_flight.outputs.push_back(storages_.add(bytes(value), MemoryPart::kCommunication));
      note_step([&] { return communication.name; });
    };
    if (!may_be_in_place) take_outputs();
    for (ValueId value : post.dies) storages_.drop(slot(value));
    if (may_be_in_place) {
      if (storages_.shared(in_flight.inputs[0])) {
        take_outputs();
      } else {
        in_flight.outputs = std::move(in_flight.inputs);
        in_flight.inputs.clear();
        note_step([&] { return communication.name; });
      }
    }
    // What is only given is packed at once, like what an all-reduce sums.
    if (reduces || communication.outputs.empty()) drop_all(in_flight.inputs);
    end_point();
  }

  void follow(const Wait& wait) {
    const Communication& communication = stage_.communications[at(wait.communication)];
    const auto& outputs = communication.outputs;
    point_.during = storages_.live();
    if (only_receives(communication)) {
      put(outputs[0], receiving_.take(point_.call, point_.step));
      receive_ahead();
      end_point();
      return;
    }
    std::deque<InFlight>& posted = in_flight_[at(wait.communication)];
    for (size_t i = 0; i < outputs.size(); ++i) put(outputs[i], posted.front().outputs[i]);
    drop_all(posted.front().inputs);
    posted.pop_front();
    end_point();
  }

  void send(const Communication& communication, const Post& post) {
    std::deque<int>& sending = sending_[communication.lane];
    if (static_cast<int>(sending.size()) >= communication.depth) {
      storages_.drop(sending.front());
      sending.pop_front();
    }
    sending.push_back(storages_.hold(slot(communication.inputs[0])));
    storages_.move_to(sending.back(), MemoryPart::kCommunication);
    note_step([&] { return communication.name; });
    for (ValueId value : post.dies) storages_.drop(slot(value));
    end_point();
  }

  void receive_ahead() {
    receiving_.post_ahead([&](const Receipt& receipt) {
      const Communication& communication = stage_.communications[at(receipt.communication)];
      return storages_.add(bytes_(communication.outputs[0], stage_.calls[receipt.call].microbatch),
                           MemoryPart::kCommunication);
    });
  }

  void drop_all(std::vector<int>& storages) {
    for (int& storage : storages) storages_.drop(storage);
    storages.clear();
  }

  const LoweredStage& stage_;
  const int device_;  // of the mesh
  const ByteTables bytes_;
  std::vector<MemoryPoint>* points_;
  const std::vector<bool>& saved_;                           // [value]
  const std::vector<std::vector<ValueId>>& aliases_;         // [op][result]
  const std::vector<std::array<ValueId, 2>>& overwritable_;  // [op]
  const std::vector<bool>& accumulating_;                    // [op]
  const FrameSchedule& schedule_;
  Storages storages_;
  std::vector<int> run_;                         // [value] kRun and kStep
  std::vector<std::vector<int>> frames_;         // [frame][value]
  std::vector<std::deque<InFlight>> in_flight_;  // [communication], the oldest first
  std::map<int, std::deque<int>> sending_;       // by lane, the oldest first
  Receiving<int> receiving_;
  std::vector<std::vector<std::pair<ValueId, int>>> batch_;  // [microbatch]
  MemoryPoint point_;
  MemoryUse use_;
};

}  // namespace

std::string_view to_string(MemoryPart part) {
  constexpr std::string_view kNames[kNumMemoryParts] = {"parameters",
                                                        "buffers",
                                                        "optimizer",
                                                        "masters",
                                                        "gradients",
                                                        "batch",
                                                        "saved",
                                                        "communication",
                                                        "transient",
                                                        "workspaces"};
  return kNames[at(part)];
}

std::vector<int64_t> workspaces_of(const std::vector<int>& devices, const Cluster& cluster) {
  std::vector<int64_t> bytes;
  for (int device : devices)
    bytes.push_back(static_cast<int64_t>(cluster.kind(device).workspace_bytes));
  const bool none = std::ranges::all_of(bytes, [](int64_t each) { return each == 0; });
  return none ? std::vector<int64_t>{} : bytes;
}

MemoryUse memory_use(const LoweredStage& stage, int device) {
  return MemoryFollower(stage, StageFacts(stage), device, nullptr).run();
}

std::vector<MemoryUse> memory_uses(const LoweredStage& stage) {
  const StageFacts facts(stage);
  // By type, and workspace and sizes, the first device that has them.
  std::map<std::pair<DType, std::vector<int64_t>>, size_t> first;
  std::vector<MemoryUse> uses;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    std::vector<int64_t> sizes = {workspace(stage, static_cast<int>(d))};
    for (const auto& of_microbatch : stage.tables)
      for (size_t symbol : facts.symbols) sizes.push_back(of_microbatch[d][symbol]);
    const auto [found, added] = first.try_emplace({bf16_as(stage, d), std::move(sizes)}, d);
    uses.push_back(added ? MemoryFollower(stage, facts, static_cast<int>(d), nullptr).run()
                         : uses[found->second]);
  }
  return uses;
}

std::vector<DeviceMemory> memory_uses(const Program& program) {
  std::vector<std::vector<MemoryUse>> uses(program.stages.size());
  for_each_in_parallel(uses.size(), [&](size_t s) { uses[s] = memory_uses(program.stages[s]); });
  std::vector<DeviceMemory> all;
  for (size_t s = 0; s < uses.size(); ++s)
    for (size_t d = 0; d < uses[s].size(); ++d)
      all.push_back({static_cast<int>(s), program.stages[s].devices[d], std::move(uses[s][d])});
  return all;
}

MemoryUse memory_use(const LoweredStage& stage, int device, std::vector<MemoryPoint>& points) {
  return MemoryFollower(stage, StageFacts(stage), device, &points).run();
}

}  // namespace medley
