#include "medley/emulation/emulated_executor.h"

#include <algorithm>
#include <map>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/walk.h"

namespace medley {

// The run's frame tracks the live values of all its frames.
class EmulatedExecutor::EmulatedFrame final : public Frame {
 public:
  EmulatedFrame(std::unique_ptr<Frame> frame, std::shared_ptr<MemoryMeter> meter)
      : inner(std::move(frame)), memory(std::move(meter)) {}
  std::unique_ptr<Frame> inner;
  std::shared_ptr<MemoryMeter> memory;
  std::map<const LoweredStage*, LivenessFacts> facts;  // for programs that differ in sizes only
  std::optional<Liveness> live;
};

class EmulatedExecutor::EmulatedSegment final : public PreparedSegment {
 public:
  EmulatedSegment(const LoweredStage& of, const Segment& ops) : stage(of), segment(ops) {}
  const LoweredStage& stage;
  const Segment& segment;
  std::unique_ptr<PreparedSegment> inner;
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
  const auto workspace = static_cast<int64_t>(cluster.kind(device).workspace_bytes);
  if (!memory_->has_room(workspace)) memory_->refuse(workspace, "workspaces of kernels");
  memory_->count(workspace);
}

Frames EmulatedExecutor::inner_frames(Frames frames) const {
  const auto inner = [](Frame* frame) {
    return frame ? static_cast<EmulatedFrame*>(frame)->inner.get() : nullptr;
  };
  return {inner(frames.run), inner(frames.microbatch)};
}

Liveness& EmulatedExecutor::liveness(const LoweredStage& stage, Frames frames) const {
  auto& run = static_cast<EmulatedFrame&>(*frames.run);
  const LivenessFacts& facts = run.facts.try_emplace(&stage, stage).first->second;
  if (!run.live) run.live.emplace(facts, static_cast<int>(place_in(stage)), *memory_);
  run.live->use(facts);
  return *run.live;
}

std::unique_ptr<Frame> EmulatedExecutor::make_frame(const LoweredStage& stage) {
  return std::make_unique<EmulatedFrame>(inner_.make_frame(stage), memory_);
}

std::unique_ptr<PreparedSegment> EmulatedExecutor::prepare(const LoweredStage& stage,
                                                           const Segment& segment,
                                                           const std::vector<int64_t>& symbols) {
  auto prepared = std::make_unique<EmulatedSegment>(stage, segment);
  DeviceKind kind = ledger_.topology().cluster().kind(device_);
  kind.bf16_as = bf16_as(stage, place_in(stage));
  for (const OpId id : segment.ops) {
    const Op& op = stage.graph.ops[at(id)];
    prepared->time +=
        options_.measured
            ? options_.measured->op(kind, stage.graph, op, symbols).value
            : options_.truth.op_time(kind, op_work(stage.graph, op, symbols, kind.bf16_as));
  }
  prepared->inner = inner_.prepare(stage, segment, symbols);
  return prepared;
}

void EmulatedExecutor::run(PreparedSegment& prepared, Frames frames) {
  auto& segment = static_cast<EmulatedSegment&>(prepared);
  if (options_.delay) options_.delay();
  if (segment.time > Nanoseconds{}) ledger_.compute(device_, segment.time);
  liveness(segment.stage, frames).follow(0, segment.segment);
  inner_.run(*segment.inner, inner_frames(frames));
  if (options_.delay) options_.delay();
  ledger_.keep_pace(device_);
}

void EmulatedExecutor::follow(const LoweredStage& stage, Frames frames, size_t call, int step) {
  Liveness& live = liveness(stage, frames);
  if (step < 0) return live.begin(call);
  const std::span<const Step> steps = steps_of(stage, stage.calls[call]);
  if (at(step) == steps.size()) return live.end();
  std::visit([&](const auto& each) { live.follow(at(step), each); }, steps[at(step)]);
}

size_t EmulatedExecutor::place_in(const LoweredStage& stage) const {
  const auto place = std::find(stage.devices.begin(), stage.devices.end(), device_);
  MEDLEY_CHECK(place != stage.devices.end());
  return at(place - stage.devices.begin());
}

Buffer EmulatedExecutor::read(const LoweredStage& stage, Frames frames, ValueId value) {
  return inner_.read(stage, inner_frames(frames), value);
}

// Updates the memory of values written outside of calls; the steps of a call imply its own changes.
void EmulatedExecutor::write(const LoweredStage& stage,
                             Frames frames,
                             ValueId value,
                             Buffer buffer) {
  Liveness& live = liveness(stage, frames);
  if (!frames.microbatch || !live.is_in_call()) buffer ? live.write(value) : live.free(value);
  inner_.write(stage, inner_frames(frames), value, std::move(buffer));
}

}  // namespace medley
