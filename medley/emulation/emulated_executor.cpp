#include "medley/emulation/emulated_executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/ops/update_ops.h"
#include "medley/program/frame_schedule.h"
#include "medley/program/overwritten.h"

namespace medley {
namespace {

bool in_run_frame(const LoweredStage& stage, ValueId value) {
  return stage.lifetimes[at(value)] != Lifetime::kMicrobatch;
}

const TensorType& type_of(const LoweredStage& stage, ValueId value) {
  return stage.graph.values[at(value)].type;
}

const Input* find_input(const LoweredStage& stage, ValueId value) {
  for (const Input& input : stage.graph.inputs)
    if (input.value == value) return &input;
  return nullptr;
}

std::string what_of(const Input& input) {
  return fmt::format("{} {}", to_string(input.kind), input.name);
}

}  // namespace

class EmulatedExecutor::EmulatedFrame final : public Frame {
 public:
  EmulatedFrame(std::unique_ptr<Frame> frame, std::shared_ptr<MemoryMeter> meter, size_t num_values)
      : inner(std::move(frame)), memory(std::move(meter)), slots(num_values) {}
  std::unique_ptr<Frame> inner;
  std::shared_ptr<MemoryMeter> memory;  // outlives the storage
  MemoryMeter::Slots slots;
};

class EmulatedExecutor::EmulatedSegment final : public PreparedSegment {
 public:
  struct Result {
    ValueId value;
    int64_t bytes;
    ValueId shares_with;  // kNone: storage of its own, or what it overwrites
    ValueId overwrites;   // the operand, if nobody else has its storage
    bool once;            // keeps the storage that it has
  };
  struct Step {
    std::string what;  // for errors
    std::vector<Result> results;
    const std::vector<ValueId>* dies;
  };

  explicit EmulatedSegment(const LoweredStage& of) : stage(of) {}
  const LoweredStage& stage;
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
  memory_ = std::make_shared<MemoryMeter>(cluster.devices.at(at(device)).name,
                                          static_cast<int64_t>(cluster.kind(device).memory_bytes));
  workspace_ = memory_->take(static_cast<int64_t>(cluster.kind(device).workspace_bytes),
                             "workspaces of kernels");
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
  return static_cast<EmulatedFrame*>(frame)->slots[at(value)];
}

std::unique_ptr<Frame> EmulatedExecutor::make_frame(const LoweredStage& stage) {
  index(stage);
  return std::make_unique<EmulatedFrame>(
      inner_.make_frame(stage), memory_, stage.graph.values.size());
}

EmulatedExecutor::Progress::Progress(const LoweredStage& stage)
    : in_flight(stage.communications.size()),
      receiving(stage),
      receipts(stage.communications.size()),
      next_receipt(stage.communications.size()) {
  for (size_t c = 0; c < stage.communications.size(); ++c)
    for (size_t i = 0; i < stage.communications[c].outputs.size(); ++i)
      outputs[stage.communications[c].outputs[i]] = {c, i};
  const FrameSchedule schedule = schedule_frames(stage);
  for (size_t i = 0; i < stage.calls.size(); ++i) {
    const Call& call = stage.calls[i];
    if (schedule.uses[i].begins && call.function != FunctionKind::kUpdate)
      order.push_back(call.microbatch);
    const std::span<const medley::Step> steps = steps_of(stage, call);
    for (size_t s = 0; s < steps.size(); ++s) {
      if (std::holds_alternative<Segment>(steps[s])) ++events;
      if (const auto* post = std::get_if<Post>(&steps[s])) {
        posts.push_back({at(post->communication), call.microbatch, events});
        ++events;
      }
      const auto* wait = std::get_if<Wait>(&steps[s]);
      if (!wait) continue;
      const auto c = at(wait->communication);
      if (!only_receives(stage.communications[c])) continue;
      receipts[c].emplace_back(i, s);
      ++events;
    }
  }
}

void EmulatedExecutor::index(const LoweredStage& stage) { progress_.try_emplace(&stage, stage); }

// To be called before anything of a step happens; most calls are in the middle of one.
void EmulatedExecutor::begin_step(const LoweredStage& stage) {
  Progress& progress = progress_.at(&stage);
  if (progress.events_left > 0) return;
  progress.events_left = progress.events;
  progress.receiving.restart();
  std::fill(progress.next_receipt.begin(), progress.next_receipt.end(), 0);
  receive_ahead(stage);
  note_receiving_posts(stage);
}

// Nothing is read for the post of a relay of which this stage takes only; it is known by the events
// before it, and noted before anything else happens.
void EmulatedExecutor::note_receiving_posts(const LoweredStage& stage) {
  Progress& progress = progress_.at(&stage);
  while (progress.events_left > 0 && !progress.posts.empty()) {
    const Progress::Posted& posted = progress.posts[progress.next_post];
    if (!stage.communications[posted.communication].inputs.empty() ||
        posted.before != progress.events - progress.events_left)
      return;
    decide(stage);
    take_outputs(stage, posted);
    progress.next_post = (progress.next_post + 1) % progress.posts.size();
    end_event(stage);
  }
}

void EmulatedExecutor::end_event(const LoweredStage& stage) {
  Progress& progress = progress_.at(&stage);
  if (--progress.events_left == 0) progress.sending.clear();
}

void EmulatedExecutor::receive_ahead(const LoweredStage& stage) {
  progress_.at(&stage).receiving.post_ahead([&](const Receipt& receipt) {
    const Communication& communication = stage.communications[at(receipt.communication)];
    return memory_->take(
        bytes_of(stage, communication.outputs[0], stage.calls[receipt.call].microbatch),
        communication.name);
  });
}

std::unique_ptr<PreparedSegment> EmulatedExecutor::prepare(const LoweredStage& stage,
                                                           const Segment& segment,
                                                           const std::vector<int64_t>& symbols) {
  index(stage);
  auto prepared = std::make_unique<EmulatedSegment>(stage);
  DeviceKind kind = ledger_.topology().cluster().kind(device_);
  const DType computed = bf16_as(stage, place_in(stage));
  kind.bf16_as = computed;
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const Op& op = stage.graph.ops[at(segment.ops[i])];
    prepared->time +=
        options_.measured
            ? options_.measured->op(kind, stage.graph, op, symbols).value
            : options_.truth.op_time(kind, op_work(stage.graph, op, symbols, computed));
    EmulatedSegment::Step& step = prepared->steps.emplace_back();
    step.what = op.module.empty() ? op.name : fmt::format("{} ({})", op.name, op.module);
    step.dies = &segment.dies[i];
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId value = op.results[r];
      if (value == kNone) continue;
      const bool once = accumulates(op);
      step.results.push_back({value,
                              num_bytes(replace_bf16(type_of(stage, value), computed), symbols),
                              storage_operand(op, r),
                              overwritten(overwritable(stage, op), segment.dies[i]),
                              once});
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
  begin_step(stage);
  note_receiving_posts(stage);
  decide(stage);
  for (const EmulatedSegment::Step& step : segment.steps) {
    for (const EmulatedSegment::Result& result : step.results) {
      MemoryMeter::Held& held = slot(stage, frames, result.value);
      if (held && result.once) continue;
      MemoryMeter::Held shared =
          result.shares_with == kNone ? nullptr : slot(stage, frames, result.shares_with);
      if (result.overwrites != kNone) {
        const MemoryMeter::Held& place = slot(stage, frames, result.overwrites);
        if (place && place->computed && place.use_count() == 1 && place->bytes == result.bytes)
          shared = place;
      }
      held = shared ? shared : memory_->take(result.bytes, step.what, true);
    }
    for (ValueId value : *step.dies) slot(stage, frames, value) = nullptr;
  }
  end_event(stage);
  inner_.run(*segment.inner, inner_frames(frames));
  if (options_.delay) options_.delay();
  ledger_.keep_pace(device_);
}

int64_t EmulatedExecutor::bytes_of(const LoweredStage& stage, ValueId value, int microbatch) const {
  const size_t place = place_in(stage);
  const DType computed = bf16_as(stage, place);
  const bool stored = computed != DType::kBF16 && is_input(stage, value);
  return num_bytes(replace_bf16(type_of(stage, value), stored ? DType::kBF16 : computed),
                   stage.tables.at(at(microbatch)).at(place));
}

size_t EmulatedExecutor::place_in(const LoweredStage& stage) const {
  const auto place = std::find(stage.devices.begin(), stage.devices.end(), device_);
  MEDLEY_CHECK(place != stage.devices.end());
  return at(place - stage.devices.begin());
}

// What a communication sends is read, input by input, just before its post; nothing else that is
// read is its first input then.
Buffer EmulatedExecutor::read(const LoweredStage& stage, Frames frames, ValueId value) {
  decide(stage);
  if (frames.microbatch) note_posted(stage, frames, value);
  return inner_.read(stage, inner_frames(frames), value);
}

// What is sent lives until the communication has been awaited, and what it will bring has its place
// from now on. An all-reduce of several tensors travels as a copy; one of a single tensor may find,
// once its input has had its chance to die, that nobody else needs it and bring the sum in the same
// place.
void EmulatedExecutor::note_posted(const LoweredStage& stage, Frames frames, ValueId value) {
  Progress& progress = progress_.at(&stage);
  if (progress.posts.empty()) return;
  note_receiving_posts(stage);
  const Progress::Posted& posted = progress.posts[progress.next_post];
  const Communication& communication = stage.communications[posted.communication];
  if (communication.inputs.empty() || communication.inputs[progress.next_input] != value) return;
  begin_step(stage);
  std::deque<InFlight>& all = progress.in_flight[posted.communication];
  if (progress.next_input == 0) all.emplace_back();
  InFlight& in_flight = all.back();
  in_flight.inputs.push_back(slot(stage, frames, value));
  if (++progress.next_input < communication.inputs.size()) return;
  progress.next_input = 0;
  progress.next_post = (progress.next_post + 1) % progress.posts.size();
  if (only_sends(communication)) {
    auto& sending = progress.sending[communication.lane];
    if (static_cast<int>(sending.size()) >= communication.depth) sending.pop_front();
    sending.push_back(std::move(in_flight.inputs[0]));
    all.pop_back();
    return end_event(stage);
  }
  end_event(stage);
  const bool reduces = communication.kind == CommunicationKind::kAllReduce;
  if (reduces && communication.inputs.size() == 1) {
    progress.undecided.push_back(posted);
    return;
  }
  if (communication.outputs.empty()) return all.pop_back();
  take_outputs(stage, posted);
  if (reduces) in_flight.inputs.clear();
}

void EmulatedExecutor::take_outputs(const LoweredStage& stage, const Progress::Posted& posted) {
  const Communication& communication = stage.communications[posted.communication];
  std::deque<InFlight>& all = progress_.at(&stage).in_flight[posted.communication];
  if (communication.inputs.empty()) all.emplace_back();
  for (ValueId output : communication.outputs)
    all.back().outputs.push_back(
        memory_->take(bytes_of(stage, output, posted.microbatch), communication.name));
}

void EmulatedExecutor::decide(const LoweredStage& stage) {
  Progress& progress = progress_.at(&stage);
  for (const Progress::Posted& posted : progress.undecided) {
    InFlight& in_flight = progress.in_flight[posted.communication].back();
    MemoryMeter::Held input = std::move(in_flight.inputs.at(0));
    in_flight.inputs.clear();
    if (input.use_count() == 1)
      in_flight.outputs.push_back(std::move(input));
    else
      take_outputs(stage, posted);
  }
  progress.undecided.clear();
}

// The tensors of all micro-batches are on the device from the beginning of the step.
MemoryMeter::Held EmulatedExecutor::move_in(const LoweredStage& stage, const Input& input) {
  begin_step(stage);
  Progress& progress = progress_.at(&stage);
  MemoryMeter::Slots& waiting = progress.batch[input.value];
  if (waiting.empty()) {
    for (auto each = progress.order.rbegin(); each != progress.order.rend(); ++each)
      waiting.push_back(memory_->take(bytes_of(stage, input.value, *each), what_of(input)));
  }
  MemoryMeter::Held held = std::move(waiting.back());
  waiting.pop_back();
  return held;
}

MemoryMeter::Held EmulatedExecutor::storage_for(const LoweredStage& stage,
                                                Frames frames,
                                                ValueId value) {
  Progress& progress = progress_.at(&stage);
  if (const auto output = progress.outputs.find(value); output != progress.outputs.end()) {
    note_receiving_posts(stage);
    const auto [c, i] = output->second;
    if (only_receives(stage.communications[c])) {
      begin_step(stage);
      const auto [call, step] = progress.receipts[c].at(progress.next_receipt[c]++);
      return progress.receiving.take(call, step);
    }
    InFlight& oldest = progress.in_flight[c].front();
    MemoryMeter::Held place = std::move(oldest.outputs.at(i));
    if (i + 1 == oldest.outputs.size()) progress.in_flight[c].pop_front();
    return place;
  }
  const Input* input = find_input(stage, value);
  if (input && !in_run_frame(stage, value)) return move_in(stage, *input);
  // Values that outlive micro-batches are equally long in all tables. A new value of a parameter
  // takes the place of the old one.
  const int64_t bytes = bytes_of(stage, value, 0);
  if (const MemoryMeter::Held& old = slot(stage, frames, value); old && old->bytes == bytes)
    return old;
  return memory_->take(bytes, input ? what_of(*input) : fmt::format("value %{}", value));
}

void EmulatedExecutor::write(const LoweredStage& stage,
                             Frames frames,
                             ValueId value,
                             Buffer buffer) {
  if (buffer) decide(stage);
  MemoryMeter::Held storage = buffer ? storage_for(stage, frames, value) : nullptr;
  slot(stage, frames, value) = std::move(storage);
  const Progress& progress = progress_.at(&stage);
  if (const auto output = progress.outputs.find(value);
      buffer && output != progress.outputs.end() &&
      only_receives(stage.communications[output->second.first])) {
    receive_ahead(stage);
    end_event(stage);
  }
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
