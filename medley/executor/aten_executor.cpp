#include "medley/executor/aten_executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/executor/instruction_build.h"
#include "medley/executor/update_program.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/combine.h"
#include "medley/kernels/gradient_sync_run.h"
#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

class AtenFrame final : public Frame {
 public:
  explicit AtenFrame(size_t values) : slots(values) {}
  std::vector<at::Tensor> slots;
};

// The two frames of a call.
class Slots {
 public:
  explicit Slots(Frames frames)
      : run_(static_cast<AtenFrame*>(frames.run)),
        microbatch_(static_cast<AtenFrame*>(frames.microbatch)) {}

  at::Tensor& operator[](Slot slot) const {
    return (slot.run ? run_ : microbatch_)->slots[at(slot.value)];
  }
  at::Tensor take(const Operand& operand) const {
    if (operand.slot.value == kNone) return {};
    at::Tensor& tensor = (*this)[operand.slot];
    if (!tensor.defined())
      throw Error(Blame::kUs, fmt::format("operand %{} is empty", operand.slot.value));
    if (operand.as && tensor.scalar_type() != *operand.as) {
      at::Tensor read = tensor.to(*operand.as);
      if (operand.dies) tensor.reset();
      return read;
    }
    return operand.dies ? std::move(tensor) : tensor;
  }
  void put(Slot slot, at::Tensor tensor) const {
    if (slot.value != kNone) (*this)[slot] = std::move(tensor);
  }

 private:
  AtenFrame* run_;
  AtenFrame* microbatch_;
};

class AtenSegment final : public PreparedSegment {
 public:
  AtenSegment(const LoweredStage& from, const std::vector<int64_t>& table, PreparedOps ops)
      : stage(from), symbols(table), prepared(std::move(ops)) {}

  const LoweredStage& stage;
  const std::vector<int64_t>& symbols;
  PreparedOps prepared;
  std::vector<c10::IValue> stack;  // reused for its capacity
};

// Runs the instructions in order.
class Runner {
 public:
  Runner(AtenSegment& segment, Frames frames, c10::Device device)
      : slots_(frames), stack_(segment.stack), device_(device) {}

  void operator()(const KernelCall& call) {
    stack_.assign(call.constants.begin(), call.constants.end());
    for (const TensorArgument& tensor : call.tensors)
      stack_[tensor.argument] =
          call.contiguous ? slots_.take(tensor.operand).contiguous() : slots_.take(tensor.operand);
    for (const ListArgument& list : call.lists) stack_[list.argument] = take_list(list);
    if (call.overwrite &&
        may_overwrite(stack_[call.overwrite->argument].toTensor(), *call.overwrite)) {
      if (call.overwrite->pass_out) stack_.push_back(stack_[call.overwrite->argument]);
      call.overwrite->handle.callBoxed(&stack_);
    } else {
      call.handle.callBoxed(&stack_);
    }
    if (call.result_is_list) {
      const c10::List<at::Tensor> list = stack_[0].toTensorList();
      MEDLEY_CHECK_EQ(list.size(), call.results.size());
      for (size_t i = 0; i < list.size(); ++i) put(call.results[i], list.get(i));
    } else {
      for (size_t i = 0; i < call.results.size(); ++i)
        if (stack_[i].isTensor()) put(call.results[i], std::move(stack_[i]).toTensor());
    }
    stack_.clear();
  }

  void operator()(const Fill& fill) {
    for (size_t i = 0; i < fill.results.size(); ++i) {
      const Result& result = fill.results[i];
      if (result.slot.value == kNone) continue;
      const auto options = at::TensorOptions().dtype(fill.types[i]).device(device_);
      slots_.put(result.slot, at::full(result.shape, fill.value, options));
    }
  }

  void operator()(const Alias& alias) { slots_.put(alias.result, slots_.take(alias.operand)); }

  void operator()(const Accumulate& accumulate) {
    at::Tensor gradient = slots_.take(accumulate.gradient);
    if (gradient.scalar_type() != accumulate.type) gradient = gradient.to(accumulate.type);
    at::Tensor& sum = slots_[accumulate.sum];
    const int64_t count = accumulate.count;
    const at::Scalar share = count == 1 ? at::Scalar(1) : at::Scalar(1.0 / double(count));
    if (!sum.defined() && count > 1)
      sum = is_unique(gradient) ? gradient.mul_(share) : gradient.mul(share);
    else if (!sum.defined())
      sum = std::move(gradient);
    else if (is_unique(sum))
      sum.add_(gradient, share);
    else
      sum = sum.add(gradient, share);
  }

  void operator()(const JoinedUpdate& joined) {
    std::vector<Updated> parameters;
    for (const JoinedUpdate::Parameter& each : joined.parameters) {
      Updated& taken = parameters.emplace_back();
      taken.parameter = slots_.take(each.parameter);
      taken.gradient = slots_.take(each.gradient);
      for (const Operand& kept : each.kept) taken.states.push_back(slots_.take(kept));
      taken.master = std::move(taken.states.back());
      taken.states.pop_back();
    }
    const UpdateNow now = read_scalars(slots_.take(joined.scalars), joined.numbers);
    if (!now.skips())
      joined.update ? joined.update(parameters, now) : (*joined.program)(parameters, now);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<Slot>& to = joined.parameters[i].replaced;
      Updated& made = parameters[i];
      slots_.put(to.front(), std::move(made.parameter));
      for (size_t s = 0; s < made.states.size(); ++s)
        slots_.put(to[s + 1], std::move(made.states[s]));
      slots_.put(to.back(), std::move(made.master));
    }
  }

  void free(const std::vector<Slot>& slots) {
    for (const Slot& slot : slots) slots_[slot].reset();
  }

 private:
  static bool may_overwrite(const at::Tensor& tensor, const Overwrite& how) {
    return is_unique(tensor) && (!how.contiguous || tensor.is_contiguous());
  }

  c10::IValue take_list(const ListArgument& list) {
    if (list.optional) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const Operand& element : list.elements)
        tensors.push_back(element.slot.value == kNone ? std::nullopt
                                                      : std::make_optional(slots_.take(element)));
      return tensors;
    }
    c10::List<at::Tensor> tensors;
    for (const Operand& element : list.elements) tensors.push_back(slots_.take(element));
    return tensors;
  }

  // Checks the shape, on which the rest of the program depends.
  void put(const Result& result, at::Tensor tensor) {
    if (result.slot.value == kNone || !tensor.defined()) return;
    if (tensor.sizes() != c10::IntArrayRef(result.shape))
      throw Error(Blame::kUs,
                  fmt::format("result %{}: expected shape [{}], got [{}]",
                              result.slot.value,
                              fmt::join(result.shape, ", "),
                              fmt::join(tensor.sizes(), ", ")));
    if (tensor.device().type() != device_.type()) tensor = tensor.to(device_);
    slots_.put(result.slot, std::move(tensor));
  }

  Slots slots_;
  std::vector<c10::IValue>& stack_;
  c10::Device device_;
};

class AtenExecutor final : public Executor {
 public:
  AtenExecutor(c10::Device device, DType bf16_as) : device_(device), bf16_as_(bf16_as) {}

  std::unique_ptr<Frame> make_frame(const LoweredStage& stage) override {
    return std::make_unique<AtenFrame>(stage.graph.values.size());
  }

  std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                           const Segment& segment,
                                           const std::vector<int64_t>& symbols) override {
    return std::make_unique<AtenSegment>(
        stage, symbols, build_instructions(stage, segment, symbols, device_, bf16_as_));
  }

  void run(PreparedSegment& prepared, Frames frames) override {
    auto& segment = static_cast<AtenSegment&>(prepared);
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::OptionalDeviceGuard guard(device_.is_cpu() ? std::nullopt
                                                          : std::make_optional(device_));
    Runner runner(segment, frames, device_);
    for (const Instruction& instruction : segment.prepared.instructions) {
      try {
        std::visit(runner, instruction.work);
        runner.free(instruction.frees);
      } catch (const std::exception& cause) {
        segment.stack.clear();
        rethrow(segment, instruction, cause);
      }
    }
  }

  Buffer read(const LoweredStage& stage, Frames frames, ValueId value) override {
    const at::Tensor& tensor = Slots(frames)[slot(stage, value)];
    const bool stored = bf16_as_ != DType::kBF16 && tensor.defined() &&
                        type_of(stage.graph, value).dtype == DType::kBF16 && is_input(stage, value);
    return to_buffer(stored ? tensor.to(c10::kBFloat16) : tensor);
  }

  void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) override {
    const Slots slots(frames);
    slots[slot(stage, value)] = arrived(to_tensor(buffer), device_);
  }

  std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                           Reduce reduce,
                                           const std::vector<std::vector<Buffer>>& inputs,
                                           const std::vector<Lengths>& lengths) override {
    const at::NoGradGuard no_grad;
    std::vector<Tensors> tensors(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      for (const Buffer& buffer : inputs[i]) tensors[i].push_back(to_tensor(buffer));
    std::vector<std::vector<Buffer>> outputs(inputs.size());
    const std::vector<Tensors> combined = medley::combine(kind, reduce, tensors, lengths);
    for (size_t i = 0; i < inputs.size(); ++i)
      for (const at::Tensor& tensor : combined[i]) outputs[i].push_back(to_buffer(tensor));
    return outputs;
  }

  std::vector<std::vector<Buffer>> combine(
      const GradientSync& sync,
      DType dtype,
      const std::vector<std::vector<Buffer>>& inputs) override {
    const at::NoGradGuard no_grad;
    std::vector<GradientSyncRun> members;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors tensors;
      for (const Buffer& buffer : inputs[i]) tensors.push_back(arrived(to_tensor(buffer), device_));
      members.emplace_back(
          sync, static_cast<int>(i), std::move(tensors), to_scalar_type(dtype), device_);
    }
    std::vector<std::vector<Buffer>> outputs;
    for (const Tensors& tensors : run_together(members)) {
      outputs.emplace_back();
      for (const at::Tensor& tensor : tensors) outputs.back().push_back(to_buffer(tensor));
    }
    return outputs;
  }

 private:
  static Slot slot(const LoweredStage& stage, ValueId value) {
    return {value, stage.lifetimes[at(value)] != Lifetime::kMicrobatch};
  }

  [[noreturn]] static void rethrow(const AtenSegment& segment,
                                   const Instruction& instruction,
                                   const std::exception& cause) {
    Blame blame = Blame::kUs;
    std::string what = cause.what();
    if (const auto* ours = dynamic_cast<const Error*>(&cause)) blame = ours->blame();
    if (const auto* theirs = dynamic_cast<const c10::Error*>(&cause)) {
      what = theirs->what_without_backtrace();
      const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&cause) ||
                          what.find("allocate memory") != std::string::npos;
      if (memory) blame = Blame::kEnvironment;
    }
    const Op& op = segment.prepared.ops[instruction.op].op;
    throw Error(blame,
                fmt::format("{}: {}", describe(segment.stage.graph, op, segment.symbols), what));
  }

  c10::Device device_;
  DType bf16_as_;
};

}  // namespace

std::unique_ptr<Executor> make_aten_executor(c10::Device device, DType bf16_as) {
  return std::make_unique<AtenExecutor>(device, bf16_as);
}

}  // namespace medley
