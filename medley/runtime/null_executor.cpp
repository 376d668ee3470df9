#include "medley/runtime/null_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

class NullFrame final : public Frame {
 public:
  explicit NullFrame(size_t num_slots) : slots(num_slots) {}
  std::vector<Buffer> slots;
};

struct Slot {
  ValueId value;
  bool in_run;
  int64_t elements;
};

struct NullOp {
  OpId op;
  std::vector<Slot> operands, results, dies;
  std::vector<Buffer> values;  // parallel to results
};

class NullSegment final : public PreparedSegment {
 public:
  explicit NullSegment(const LoweredStage& of) : stage(of) {}
  const LoweredStage& stage;
  std::vector<NullOp> ops;
  Nanoseconds time;
};

int64_t num_elements(const NullTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t num_elements(const Buffer& buffer) {
  return num_elements(*static_cast<const NullTensor*>(buffer.get()));
}

NullTensor local_tensor(const LoweredStage& stage,
                        ValueId value,
                        const std::vector<int64_t>& symbols) {
  const TensorType& type = stage.graph.values[at(value)].type;
  return {type.dtype, evaluate_all(type.shape, symbols)};
}

bool in_run(const LoweredStage& stage, ValueId value) {
  return stage.lifetimes[at(value)] != Lifetime::kMicrobatch;
}

Buffer& slot(Frames frames, bool in_run_frame, ValueId value) {
  Frame* frame = in_run_frame ? frames.run : frames.microbatch;
  return static_cast<NullFrame*>(frame)->slots[at(value)];
}

void check_operand(const NullSegment& segment, const NullOp& op, const Slot& operand, Frames f) {
  const Buffer& buffer = slot(f, operand.in_run, operand.value);
  const std::string& name = segment.stage.graph.ops[at(op.op)].name;
  if (!buffer)
    throw Error(Blame::kUs, fmt::format("{}: operand %{} is empty", name, operand.value));
  if (num_elements(buffer) != operand.elements)
    throw Error(Blame::kUs,
                fmt::format("{}: operand %{}: expected {} elements, got {}",
                            name,
                            operand.value,
                            operand.elements,
                            num_elements(buffer)));
}

int64_t sum(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// Returns the numbers of elements into and out of device `me`.
std::pair<int64_t, int64_t> flow(const CommunicationTraits& traits,
                                 const Executor::Lengths& lengths,
                                 size_t me,
                                 int64_t elements) {
  if (traits.is_whole()) return {elements, elements};
  return {traits.sends ? sum(lengths.send) : lengths.receive[me],
          traits.receives ? sum(lengths.receive) : lengths.send[me]};
}

}  // namespace

Buffer null_buffer(DType dtype, std::vector<int64_t> shape) {
  return std::make_shared<NullTensor>(NullTensor{dtype, std::move(shape)});
}

std::unique_ptr<Frame> NullExecutor::make_frame(const LoweredStage& stage) {
  return std::make_unique<NullFrame>(stage.graph.values.size());
}

std::unique_ptr<PreparedSegment> NullExecutor::prepare(const LoweredStage& stage,
                                                       const Segment& segment,
                                                       const std::vector<int64_t>& symbols) {
  MEDLEY_CHECK_EQ(segment.ops.size(), segment.dies.size());
  ++num_prepared_;
  auto prepared = std::make_unique<NullSegment>(stage);
  const auto to_slot = [&](ValueId value) {
    return Slot{value, in_run(stage, value), num_elements(local_tensor(stage, value, symbols))};
  };
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const Op& op = stage.graph.ops[at(segment.ops[i])];
    NullOp& null = prepared->ops.emplace_back();
    null.op = segment.ops[i];
    for (ValueId value : operands(op))
      if (value != kNone) null.operands.push_back(to_slot(value));
    for (ValueId value : op.results) {
      if (value == kNone) continue;
      null.results.push_back(to_slot(value));
      null.values.push_back(std::make_shared<NullTensor>(local_tensor(stage, value, symbols)));
    }
    for (ValueId value : segment.dies[i]) null.dies.push_back(to_slot(value));
    if (time_) prepared->time += time_(stage, segment.ops[i], symbols);
  }
  return prepared;
}

void NullExecutor::run(PreparedSegment& prepared, Frames frames) {
  auto& segment = static_cast<NullSegment&>(prepared);
  if (clock_ && segment.time > Nanoseconds{}) clock_->sleep_until(clock_->now() + segment.time);
  for (const NullOp& op : segment.ops) {
    for (const Slot& operand : op.operands) check_operand(segment, op, operand, frames);
    for (size_t i = 0; i < op.results.size(); ++i)
      slot(frames, op.results[i].in_run, op.results[i].value) = op.values[i];
    for (const Slot& dead : op.dies) slot(frames, dead.in_run, dead.value) = nullptr;
  }
  num_run_ += static_cast<int64_t>(segment.ops.size());
}

Buffer NullExecutor::read(const LoweredStage& stage, Frames frames, ValueId value) {
  return slot(frames, in_run(stage, value), value);
}

void NullExecutor::write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) {
  slot(frames, in_run(stage, value), value) = std::move(buffer);
}

std::vector<std::vector<Buffer>> NullExecutor::combine(
    CommunicationKind kind,
    Reduce,
    const std::vector<std::vector<Buffer>>& inputs,
    const std::vector<Lengths>& lengths) {
  std::vector<std::vector<Buffer>> outputs(inputs.size());
  if (kind == CommunicationKind::kTransfer) {
    const DType dtype = static_cast<const NullTensor*>(inputs.at(0).at(0).get())->dtype;
    for (size_t me = 0; me < inputs.size(); ++me) {
      if (inputs[me].empty()) outputs[me].push_back(null_buffer(dtype, {sum(lengths[me].receive)}));
      for (const Buffer& input : inputs[me])
        MEDLEY_CHECK_EQ(num_elements(input), sum(lengths[me].send));
    }
    return outputs;
  }
  const CommunicationTraits& traits = traits_of(kind);
  for (size_t me = 0; me < inputs.size(); ++me) {
    for (const Buffer& input : inputs[me]) {
      const auto& tensor = *static_cast<const NullTensor*>(input.get());
      const auto [in, out] = flow(traits, lengths[me], me, num_elements(tensor));
      MEDLEY_CHECK_EQ(num_elements(tensor), in);
      outputs[me].push_back(
          null_buffer(tensor.dtype, traits.is_whole() ? tensor.shape : std::vector<int64_t>{out}));
    }
  }
  return outputs;
}

std::vector<std::vector<Buffer>> NullExecutor::combine(
    const GradientSync& sync, DType dtype, const std::vector<std::vector<Buffer>>& inputs) {
  std::vector<std::vector<Buffer>> outputs(inputs.size());
  MEDLEY_CHECK_EQ(inputs.size(), sync.members.size());
  for (size_t me = 0; me < inputs.size(); ++me) {
    const int member = static_cast<int>(me);
    MEDLEY_CHECK_EQ(inputs[me].size(), sync.members[me].inputs.size());
    for (size_t i = 0; i < inputs[me].size(); ++i) {
      const SyncTensor& tensor = *sync.tensors[at(sync.members[me].inputs[i])];
      if (const int64_t elements = given(tensor, member); elements > 0)
        MEDLEY_CHECK_EQ(num_elements(inputs[me][i]), elements);
    }
    for (int tensor : sync.members[me].outputs)
      outputs[me].push_back(null_buffer(dtype, {taken(*sync.tensors[at(tensor)], member)}));
  }
  return outputs;
}

int64_t num_values(const Frame& null_frame) {
  const auto& slots = static_cast<const NullFrame&>(null_frame).slots;
  return std::count_if(slots.begin(), slots.end(), [](const Buffer& b) { return b != nullptr; });
}

}  // namespace medley
