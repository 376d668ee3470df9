#include "medley/emulation/emulated_executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"

namespace medley {
namespace {

bool in_run_frame(const LoweredStage& stage, ValueId value) {
  return stage.lifetimes[static_cast<size_t>(value)] != Lifetime::kMicrobatch;
}

const TensorType& type_of(const LoweredStage& stage, ValueId value) {
  return stage.graph.values[static_cast<size_t>(value)].type;
}

const Input* find_input(const LoweredStage& stage, ValueId value) {
  for (const Input& input : stage.graph.inputs)
    if (input.value == value) return &input;
  return nullptr;
}

}  // namespace

class EmulatedExecutor::EmulatedFrame final : public Frame {
 public:
  EmulatedFrame(std::unique_ptr<Frame> frame, std::shared_ptr<MemoryMeter> meter, size_t num_values)
      : inner(std::move(frame)), memory(std::move(meter)), slots(num_values) {}
  std::unique_ptr<Frame> inner;
  std::shared_ptr<MemoryMeter> memory;  // outlives the storage
  MemoryMeter::Slots slots;
  const std::vector<int64_t>* symbols =
      nullptr;  // of the micro-batch that is in it, once a segment has run
};

class EmulatedExecutor::EmulatedSegment final : public PreparedSegment {
 public:
  struct Result {
    ValueId value;
    int64_t bytes;
    ValueId shares_with;  // kNone: storage of its own
    bool once;            // keeps the storage that it has
  };
  struct Step {
    std::string what;  // for errors
    std::vector<Result> results;
    const std::vector<ValueId>* dies;
  };

  EmulatedSegment(const LoweredStage& of, const std::vector<int64_t>& table)
      : stage(of), symbols(table) {}
  const LoweredStage& stage;
  const std::vector<int64_t>& symbols;
  std::unique_ptr<PreparedSegment> inner;
  std::vector<Step> steps;
  Nanoseconds time;
};

EmulatedExecutor::EmulatedExecutor(Executor& inner,
                                   Ledger& ledger,
                                   int device,
                                   EmulatedExecutorOptions options)
    : inner_(inner), ledger_(ledger), device_(device), options_(std::move(options)) {
  const Cluster& cluster = ledger.topology().cluster();
  memory_ = std::make_shared<MemoryMeter>(cluster.devices.at(static_cast<size_t>(device)).name,
                                          static_cast<int64_t>(cluster.kind(device).memory_bytes));
}

Frames EmulatedExecutor::inner_frames(Frames frames) const {
  const auto inner = [](Frame* frame) {
    return frame ? static_cast<EmulatedFrame*>(frame)->inner.get() : nullptr;
  };
  return {inner(frames.run), inner(frames.microbatch)};
}

MemoryMeter::Held& EmulatedExecutor::slot(const LoweredStage& stage,
                                          Frames frames,
                                          ValueId value) const {
  Frame* frame = in_run_frame(stage, value) ? frames.run : frames.microbatch;
  MEDLEY_CHECK(frame);
  return static_cast<EmulatedFrame*>(frame)->slots[static_cast<size_t>(value)];
}

std::unique_ptr<Frame> EmulatedExecutor::make_frame(const LoweredStage& stage) {
  index_communications(stage);
  return std::make_unique<EmulatedFrame>(
      inner_.make_frame(stage), memory_, stage.graph.values.size());
}

void EmulatedExecutor::index_communications(const LoweredStage& stage) {
  auto [place, is_new] = communications_.try_emplace(&stage);
  if (!is_new) return;
  Communications& index = place->second;
  index.in_flight.resize(stage.communications.size());
  for (size_t c = 0; c < stage.communications.size(); ++c) {
    const Communication& communication = stage.communications[c];
    for (size_t i = 0; i < communication.inputs.size(); ++i)
      index.inputs.emplace(communication.inputs[i], std::pair(c, i));
    for (size_t i = 0; i < communication.outputs.size(); ++i)
      index.outputs[communication.outputs[i]] = {c, i};
    index.in_flight[c].inputs.resize(communication.inputs.size());
    index.in_flight[c].outputs.resize(communication.outputs.size());
  }
}

std::unique_ptr<PreparedSegment> EmulatedExecutor::prepare(const LoweredStage& stage,
                                                           const Segment& segment,
                                                           const std::vector<int64_t>& symbols) {
  auto prepared = std::make_unique<EmulatedSegment>(stage, symbols);
  const DeviceKind& kind = ledger_.topology().cluster().kind(device_);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const Op& op = stage.graph.ops[static_cast<size_t>(segment.ops[i])];
    prepared->time += options_.truth.op_time(kind, op_work(stage.graph, op, symbols));
    EmulatedSegment::Step& step = prepared->steps.emplace_back();
    step.what = op.module.empty() ? op.name : fmt::format("{} ({})", op.name, op.module);
    step.dies = &segment.dies[i];
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId value = op.results[r];
      if (value == kNone) continue;
      const bool once = op.name == "medley.accumulate.default";
      step.results.push_back(
          {value, num_bytes(type_of(stage, value), symbols), storage_operand(op, r), once});
    }
  }
  prepared->inner = inner_.prepare(stage, segment, symbols);
  return prepared;
}

void EmulatedExecutor::run(PreparedSegment& prepared, Frames frames) {
  auto& segment = static_cast<EmulatedSegment&>(prepared);
  const LoweredStage& stage = segment.stage;
  if (options_.delay) options_.delay();
  if (segment.time > Nanoseconds{}) ledger_.compute(device_, segment.time);
  if (frames.microbatch) static_cast<EmulatedFrame*>(frames.microbatch)->symbols = &segment.symbols;
  for (const EmulatedSegment::Step& step : segment.steps) {
    for (const EmulatedSegment::Result& result : step.results) {
      MemoryMeter::Held& held = slot(stage, frames, result.value);
      if (held && result.once) continue;
      const MemoryMeter::Held shared =
          result.shares_with == kNone ? nullptr : slot(stage, frames, result.shares_with);
      held = shared ? shared : memory_->take(result.bytes, step.what);
    }
    for (ValueId value : *step.dies) slot(stage, frames, value) = nullptr;
  }
  inner_.run(*segment.inner, inner_frames(frames));
  if (options_.delay) options_.delay();
  ledger_.keep_pace(device_);
}

// Values that outlive micro-batches are equally long in all tables. Batch tensors come before
// anything says which micro-batch it is, so they count as in the longest.
int64_t EmulatedExecutor::bytes_of(const LoweredStage& stage, Frames frames, ValueId value) const {
  const TensorType& type = type_of(stage, value);
  const auto* frame = static_cast<const EmulatedFrame*>(frames.microbatch);
  if (!in_run_frame(stage, value) && frame && frame->symbols)
    return num_bytes(type, *frame->symbols);
  const auto place = std::find(stage.devices.begin(), stage.devices.end(), device_);
  MEDLEY_CHECK(place != stage.devices.end());
  int64_t bytes = 0;
  for (const auto& table : stage.tables)
    bytes = std::max(bytes,
                     num_bytes(type, table.at(static_cast<size_t>(place - stage.devices.begin()))));
  return bytes;
}

Buffer EmulatedExecutor::read(const LoweredStage& stage, Frames frames, ValueId value) {
  if (frames.microbatch) note_posted(stage, frames, value);
  return inner_.read(stage, inner_frames(frames), value);
}

// What is sent lives until the communication has been awaited, and what it will bring has its place
// from now on; an all-reduce may find that nobody else needs its input and bring its sum in the
// same place.
void EmulatedExecutor::note_posted(const LoweredStage& stage, Frames frames, ValueId value) {
  Communications& index = communications_.at(&stage);
  const auto [first, last] = index.inputs.equal_range(value);
  for (auto each = first; each != last; ++each) {
    const auto [c, i] = each->second;
    const Communication& communication = stage.communications[c];
    InFlight& in_flight = index.in_flight[c];
    in_flight.inputs[i] = slot(stage, frames, value);
    if (communication.kind == CommunicationKind::kAllReduce || in_flight.outputs[i]) continue;
    in_flight.outputs[i] =
        memory_->take(bytes_of(stage, frames, communication.outputs[i]), communication.name);
  }
}

MemoryMeter::Held EmulatedExecutor::storage_for(const LoweredStage& stage,
                                                Frames frames,
                                                ValueId value) {
  Communications& index = communications_.at(&stage);
  std::string what;
  if (const auto output = index.outputs.find(value); output != index.outputs.end()) {
    const auto [c, i] = output->second;
    MemoryMeter::Held place = std::move(index.in_flight[c].outputs[i]);
    MemoryMeter::Held input =
        i < index.in_flight[c].inputs.size() ? std::move(index.in_flight[c].inputs[i]) : nullptr;
    if (place) return place;
    if (input && input.use_count() == 1) return input;
    what = stage.communications[c].name;
  } else if (const Input* input = find_input(stage, value)) {
    what = fmt::format("{} {}", to_string(input->kind), input->name);
  } else {
    what = fmt::format("value %{}", value);
  }
  const int64_t bytes = bytes_of(stage, frames, value);
  // A new value of a parameter takes the place of the old one.
  if (const MemoryMeter::Held& old = slot(stage, frames, value); old && old->bytes == bytes)
    return old;
  return memory_->take(bytes, what);
}

void EmulatedExecutor::write(const LoweredStage& stage,
                             Frames frames,
                             ValueId value,
                             Buffer buffer) {
  if (buffer && frames.microbatch && find_input(stage, value) && !in_run_frame(stage, value))
    static_cast<EmulatedFrame*>(frames.microbatch)->symbols =
        nullptr;  // another micro-batch moves in
  MemoryMeter::Held storage = buffer ? storage_for(stage, frames, value) : nullptr;
  slot(stage, frames, value) = std::move(storage);
  inner_.write(stage, inner_frames(frames), value, std::move(buffer));
}

std::vector<std::vector<Buffer>> EmulatedExecutor::combine(
    CommunicationKind kind,
    Reduce reduce,
    const std::vector<std::vector<Buffer>>& inputs,
    const std::vector<Lengths>& lengths) {
  return inner_.combine(kind, reduce, inputs, lengths);
}

}  // namespace medley
