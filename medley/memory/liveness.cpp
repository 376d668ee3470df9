#include "medley/memory/liveness.h"

#include <fmt/format.h>

#include <set>

#include "medley/base/error.h"
#include "medley/base/units.h"
#include "medley/graph/replace_bf16.h"
#include "medley/ops/overwrite.h"
#include "medley/ops/rule.h"
#include "medley/ops/update_ops.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

MemoryPart part_of(const Input& input) {
  switch (input.kind) {
    case InputKind::kParameter:
      return MemoryPart::kParameters;
    case InputKind::kState:
      return input.role.kind == StateRole::Kind::kMaster ? MemoryPart::kMasters
                                                         : MemoryPart::kOptimizer;
    case InputKind::kBatch:
    case InputKind::kReceived:
      return MemoryPart::kBatch;
    case InputKind::kBuffer:
    case InputKind::kScalar:
      break;
  }
  return MemoryPart::kBuffers;
}

const Input* find_input(const LoweredStage& stage, ValueId value) {
  const auto found = std::ranges::find(stage.graph.inputs, value, &Input::value);
  return found == stage.graph.inputs.end() ? nullptr : &*found;
}

// Names a value by its source.
std::string source_of(const LoweredStage& stage, ValueId value) {
  if (const Input* input = find_input(stage, value))
    return fmt::format("{} {}", to_string(input->kind), input->name);
  for (const Communication& communication : stage.communications)
    if (std::ranges::count(communication.outputs, value) > 0) return communication.name;
  const OpId producer = stage.graph.values[at(value)].producer;
  if (producer == kNone) return fmt::format("value %{}", value);
  const Op& op = stage.graph.ops[at(producer)];
  return op.module.empty() ? op.name : fmt::format("{} ({})", op.name, op.module);
}

// Returns kMicrobatch values that die in the backward function, but come from before it.
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

// Returns the symbols in sizes of values. Others, such as the start of a shard, do not matter.
std::vector<size_t> symbols_of_sizes(const LoweredStage& stage) {
  std::set<size_t> symbols;
  for (const Value& value : stage.graph.values)
    for (const Size& size : value.type.shape)
      for (Symbol symbol : size.symbols) symbols.insert(at(symbol));
  return {symbols.begin(), symbols.end()};
}

// Values that outlive a micro-batch are not overwritten.
std::array<ValueId, 2> overwritable_in(const LoweredStage& stage, const Op& op) {
  std::array<ValueId, 2> operands = overwritable(stage.graph, op);
  for (ValueId& value : operands)
    if (value != kNone && stage.lifetimes[at(value)] != Lifetime::kMicrobatch) value = kNone;
  return operands;
}

}  // namespace

void MemoryMeter::refuse(int64_t bytes, const std::string& what) const {
  throw Error(Blame::kCaller,
              fmt::format("{}: out of memory: {}: needs {}, available are {} of {}",
                          device_,
                          what,
                          to_string(Bytes{bytes}),
                          to_string(Bytes{capacity_ - live_}),
                          to_string(Bytes{capacity_})));
}

Storages::~Storages() {
  for (const int64_t bytes : parts_) meter_->count(-bytes);
}

int Storages::add(const Item& item) {
  count(item, 1);
  if (free_.empty()) {
    items_.push_back(item);
    return static_cast<int>(items_.size()) - 1;
  }
  const int storage = free_.back();
  free_.pop_back();
  items_[at(storage)] = item;
  return storage;
}

int Storages::hold(int storage) {
  ++items_[at(storage)].holders;
  return storage;
}

void Storages::drop(int& storage) {
  if (storage == kNone) return;
  Item& item = items_[at(storage)];
  if (--item.holders == 0) {
    count(item, -1);
    free_.push_back(storage);
  }
  storage = kNone;
}

void Storages::move_to(int storage, MemoryPart part) {
  Item& item = items_[at(storage)];
  parts_[at(item.part)] -= item.bytes;
  parts_[at(part)] += item.bytes;
  item.part = part;
}

void Storages::count(const Item& item, int64_t sign) {
  meter_->count(sign * item.bytes);
  parts_[at(item.part)] += sign * item.bytes;
}

LivenessFacts::LivenessFacts(const LoweredStage& of)
    : stage(of),
      saved(saved_values(of)),
      symbols(symbols_of_sizes(of)),
      schedule(schedule_frames(of)) {
  for (const Op& op : of.graph.ops) {
    OfOp& own = ops.emplace_back(OfOp{{}, overwritable_in(of, op), medley::accumulates(op)});
    for (size_t r = 0; r < op.results.size(); ++r) own.aliases.push_back(storage_operand(op, r));
  }
}

ByteTables::ByteTables(const LivenessFacts& facts, int device) {
  const LoweredStage& stage = facts.stage;
  std::map<std::vector<int64_t>, size_t> known;
  for (const auto& of_microbatch : stage.tables) {
    const std::vector<int64_t>& lengths = of_microbatch[at(device)];
    std::vector<int64_t> key;
    for (size_t symbol : facts.symbols) key.push_back(lengths[symbol]);
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

Liveness::Liveness(const LivenessFacts& facts,
                   int device,
                   MemoryMeter& meter,
                   std::vector<MemoryPoint>* points)
    : facts_(&facts),
      device_(device),
      bytes_(facts, device),
      meter_(meter),
      points_(points),
      storages_(meter),
      run_(facts.stage.graph.values.size(), kNone),
      frames_(at(std::max(facts.schedule.num_frames, 1)), run_),
      in_flight_(facts.stage.communications.size()),
      receiving_(facts.stage),
      batch_(facts.stage.tables.size()) {}

void Liveness::use(const LivenessFacts& facts) {
  if (&facts == facts_) return;
  facts_ = &facts;
  bytes_ = ByteTables(facts, device_);
}

void Liveness::write(ValueId value) {
  int& place = slot(value);
  if (place != kNone && storages_[place].bytes == bytes_(value, 0)) return;
  const Input* input = find_input(stage(), value);
  put(value, take(value, 0, input ? part_of(*input) : MemoryPart::kTransient));
  meter_.note_peak();
}

int& Liveness::slot(ValueId value) {
  return (lifetime(value) == Lifetime::kMicrobatch ? frames_[frame_] : run_)[at(value)];
}

int Liveness::take(ValueId value, int microbatch, MemoryPart part, bool computed) {
  const int64_t bytes = bytes_(value, microbatch);
  if (!meter_.has_room(bytes)) meter_.refuse(bytes, source_of(stage(), value));
  return storages_.add({bytes, part, computed});
}

// Takes over one reference.
void Liveness::put(ValueId value, int storage) {
  int& place = slot(value);
  storages_.drop(place);
  place = storage;
  if (lifetime(value) == Lifetime::kStep) storages_.move_to(storage, MemoryPart::kGradients);
  const MemoryPart part = storages_[storage].part;
  if (part == MemoryPart::kTransient || part == MemoryPart::kCommunication)
    storages_.move_to(storage,
                      facts_->saved[at(value)] ? MemoryPart::kSaved : MemoryPart::kTransient);
}

template <typename What>
void Liveness::note(const What& what) {
  point_.during = meter_.live();
  meter_.note_peak();
  if (meter_.live() > peak_.bytes) peak_ = {meter_.live(), storages_.parts(), what()};
}

void Liveness::end_point() {
  if (!points_) return;
  point_.after = meter_.live();
  points_->push_back(point_);
}

void Liveness::begin_step() {
  for (size_t m = 0; m < batch_.size(); ++m)
    for (const Input& input : stage().graph.inputs)
      if (lifetime(input.value) == Lifetime::kMicrobatch)
        batch_[m].emplace_back(input.value,
                               take(input.value, static_cast<int>(m), MemoryPart::kBatch));
  note([] { return "the batch"; });
  receiving_.restart();
  receive_ahead();
  note([] { return "what is received ahead"; });
}

void Liveness::begin(size_t call) {
  point_.call = call;
  if (call == 0) begin_step();
  is_in_call_ = true;
  frame_ = at(frame_use().frame);
  if (!frame_use().begins || this->call().function == FunctionKind::kUpdate) return;
  auto& batch = batch_[at(this->call().microbatch)];
  for (auto& [value, storage] : batch) put(value, storage);
  batch.clear();
}

void Liveness::end() {
  is_in_call_ = false;
  if (call().ends()) {
    // A new value replaces the storage of the old one.
    for (const Assign& assign : find_function(stage(), call().function).assigns)
      if (storages_[slot(assign.to)].bytes != storages_[slot(assign.from)].bytes)
        put(assign.to, storages_.hold(slot(assign.from)));
    for (ValueId value : frame_use().leftovers) storages_.drop(slot(value));
  }
  if (point_.call + 1 < stage().calls.size()) return;
  for (auto& [lane, sending] : sending_)
    for (int& storage : sending) storages_.drop(storage);
  sending_.clear();
}

int64_t Liveness::saved() const {
  std::set<int> seen;
  int64_t sum = 0;
  for (int storage : frames_[frame_])
    if (storage != kNone && storages_[storage].part == MemoryPart::kSaved &&
        seen.insert(storage).second)
      sum += storages_[storage].bytes;
  return sum;
}

void Liveness::follow(size_t step, const Segment& segment) {
  point_.step = step;
  for (point_.op = 0; point_.op < segment.ops.size(); ++point_.op) {
    const auto id = at(segment.ops[point_.op]);
    const Op& op = stage().graph.ops[id];
    const LivenessFacts::OfOp& facts = facts_->ops[id];
    const std::vector<ValueId>& dies = segment.dies[point_.op];
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId result = op.results[r];
      if (result == kNone || (facts.accumulates && slot(result) != kNone)) continue;
      const ValueId alias = facts.aliases[r];
      const int shared = alias == kNone ? left_storage(facts, dies, result) : slot(alias);
      put(result,
          shared != kNone ? storages_.hold(shared)
                          : take(result, call().microbatch, MemoryPart::kTransient, true));
    }
    note([&] {
      return fmt::format(
          "{}, {}{}{}", to_string(call()), op.module, op.module.empty() ? "" : ": ", op.name);
    });
    for (ValueId value : dies) storages_.drop(slot(value));
    end_point();
  }
}

// Returns the storage of the operand that the result overwrites: the first that dies, if it is
// unshared and equally large; or kNone.
int Liveness::left_storage(const LivenessFacts::OfOp& op,
                           const std::vector<ValueId>& dies,
                           ValueId result) {
  const auto operand = std::ranges::find_if(op.overwritable, [&](ValueId value) {
    return value != kNone && std::ranges::find(dies, value) != dies.end();
  });
  const int storage = operand == op.overwritable.end() ? kNone : slot(*operand);
  if (storage == kNone) return kNone;
  const Storages::Item& item = storages_[storage];
  if (!item.computed || item.holders > 1 || item.bytes != bytes(result)) return kNone;
  storages_.move_to(storage, MemoryPart::kTransient);
  return storage;
}

void Liveness::follow(size_t step, const Post& post) {
  point_.step = step;
  point_.op = 0;
  const Communication& communication = stage().communications[at(post.communication)];
  const bool reduces = communication.kind == CommunicationKind::kAllReduce;
  const bool may_be_in_place = reduces && communication.inputs.size() == 1;
  if (only_sends(communication)) return send(communication, post);
  InFlight& in_flight = in_flight_[at(post.communication)].emplace_back();
  for (ValueId value : communication.inputs)
    in_flight.inputs.push_back(storages_.hold(slot(value)));
  const auto take_outputs = [&] {
    for (ValueId value : communication.outputs)
      in_flight.outputs.push_back(take(value, call().microbatch, MemoryPart::kCommunication));
  };
  const auto note_name = [&] {
    note([&] { return fmt::format("{}, {}", to_string(call()), communication.name); });
  };
  if (!may_be_in_place) {
    take_outputs();
    note_name();
  }
  for (ValueId value : post.dies) storages_.drop(slot(value));
  if (may_be_in_place) {
    if (storages_[in_flight.inputs[0]].holders > 1)
      take_outputs();
    else
      in_flight.outputs.swap(in_flight.inputs);
    note_name();
  }
  // Inputs without outputs are packed immediately, like those of an all-reduce.
  if (reduces || communication.outputs.empty()) drop_all(in_flight.inputs);
  end_point();
}

void Liveness::follow(size_t step, const Wait& wait) {
  point_.step = step;
  point_.op = 0;
  const Communication& communication = stage().communications[at(wait.communication)];
  const auto& outputs = communication.outputs;
  point_.during = meter_.live();
  if (only_receives(communication)) {
    put(outputs[0], receiving_.take(point_.call, step));
    receive_ahead();
    return end_point();
  }
  std::deque<InFlight>& posted = in_flight_[at(wait.communication)];
  for (size_t i = 0; i < outputs.size(); ++i) put(outputs[i], posted.front().outputs[i]);
  drop_all(posted.front().inputs);
  posted.pop_front();
  end_point();
}

void Liveness::send(const Communication& communication, const Post& post) {
  std::deque<int>& sending = sending_[communication.lane];
  if (static_cast<int>(sending.size()) >= communication.depth) {
    storages_.drop(sending.front());
    sending.pop_front();
  }
  sending.push_back(storages_.hold(slot(communication.inputs[0])));
  storages_.move_to(sending.back(), MemoryPart::kCommunication);
  note([&] { return fmt::format("{}, {}", to_string(call()), communication.name); });
  for (ValueId value : post.dies) storages_.drop(slot(value));
  end_point();
}

void Liveness::receive_ahead() {
  receiving_.post_ahead([&](const Receipt& receipt) {
    return take(stage().communications[at(receipt.communication)].outputs[0],
                stage().calls[receipt.call].microbatch,
                MemoryPart::kCommunication);
  });
}

void Liveness::drop_all(std::vector<int>& storages) {
  for (int& storage : storages) storages_.drop(storage);
  storages.clear();
}

}  // namespace medley
