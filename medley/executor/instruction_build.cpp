#include "medley/executor/instruction_build.h"

#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/executor/empty_operands.h"
#include "medley/graph/replace_bf16.h"
#include "medley/kernels/arguments.h"
#include "medley/ops/overwrite.h"
#include "medley/ops/update_ops.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

std::string_view program_of(const JoinedUpdate& update) {
  return update.program ? std::string_view(update.program->text()) : std::string_view();
}

// Replaces views and copies, since strides differ from the capture. A view is any op with the
// shape, and a copy is needed only for contiguity. Values may share memory, because only unshared
// ones are overwritten.
Op with_any_strides(const Op& op) {
  Op same = op;
  if (op.name == "aten.view.default" || op.name == "aten._unsafe_view.default")
    same.name = "aten.reshape.default";
  if (op.name == "aten.clone.default") {
    same.name = "aten.contiguous.default";
    same.arguments.resize(1);
  }
  return same;
}

// Kernels that raise or read the wrong elements for other strides. PyTorch's callers copy first,
// but that copy may have been folded. The values that linalg keeps for its backward depend on the
// strides of the capture.
const std::set<std::string_view> kTakesContiguous{"aten._linalg_det.default",
                                                  "aten._linalg_slogdet.default",
                                                  "aten._linalg_solve_ex.default",
                                                  "aten.fractional_max_pool2d_backward.default",
                                                  "aten.native_group_norm.default",
                                                  "aten.native_group_norm_backward.default",
                                                  "aten.native_layer_norm_backward.default"};

bool is_tensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType)
    return is_tensor(type->castRaw<c10::OptionalType>()->getElementType());
  return type->kind() == c10::TypeKind::TensorType;
}

// Returns the values that this segment's call replaces at its end and that have no readers after
// the segment.
std::set<ValueId> replaced_values(const LoweredStage& stage, const Segment& segment) {
  for (const Function& function : stage.functions) {
    const auto here =
        std::find_if(function.steps.begin(), function.steps.end(), [&](const Step& s) {
          const auto* each = std::get_if<Segment>(&s);
          return each && each->ops == segment.ops;
        });
    if (here == function.steps.end()) continue;
    std::set<ValueId> replaced;
    for (const Assign& assign : function.assigns) replaced.insert(assign.to);
    for (const Item& item : items_of(std::span(here + 1, function.steps.end())))
      for (ValueId value : uses(stage, item)) replaced.erase(value);
    return replaced;
  }
  return {};
}

class Builder {
 public:
  Builder(const LoweredStage& stage,
          const Segment& segment,
          const std::vector<int64_t>& symbols,
          c10::Device device,
          DType bf16_as)
      : stage_(stage),
        graph_(stage.graph),
        symbols_(symbols),
        device_(device),
        bf16_as_(bf16_as),
        replaced_(replaced_values(stage, segment)) {
    for (const Input& input : graph_.inputs)
      if (bf16_as != DType::kBF16 && type_of(graph_, input.value).dtype == DType::kBF16)
        stored_.insert(input.value);
  }

  std::vector<Instruction> build(const std::vector<SegmentOp>& ops) {
    std::vector<Instruction> instructions;
    for (size_t i = 0; i < ops.size(); ++i) {
      try {
        start(ops[i]);
        if (!join_update(ops, i, instructions)) {
          auto work = build(ops[i].op);
          instructions.push_back({std::move(work), frees(), i});
        }
      } catch (const Error& error) {
        throw Error(error.blame(),
                    fmt::format("{}: {}", describe(graph_, ops[i].op, symbols_), error.what()));
      }
    }
    return instructions;
  }

 private:
  // Marks the operands that the op may give away: those that die and appear once only.
  void start(const SegmentOp& op) {
    dies_ = op.dies;
    given_.clear();
    uses_.clear();
    for (ValueId value : operands(op.op)) ++uses_[value];
  }

  Slot slot(ValueId value) const {
    if (value == kNone) return {};
    return {value, stage_.lifetimes[at(value)] != Lifetime::kMicrobatch};
  }

  Operand operand(ValueId value) {
    Operand operand{slot(value), false};
    if (stored_.contains(value)) operand.as = to_scalar_type(bf16_as_);
    if (value != kNone && uses_[value] == 1 && contains(dies_, value)) {
      operand.dies = true;
      given_.push_back(value);
    }
    return operand;
  }
  Operand operand(const Argument& argument) {
    const auto* one = std::get_if<ValueArgument>(&argument);
    return operand(one ? one->value : kNone);
  }

  static bool contains(const std::vector<ValueId>& values, ValueId value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }

  // Results without readers are not kept.
  Slot result_slot(ValueId value) const { return contains(dies_, value) ? Slot{} : slot(value); }

  std::vector<Result> results(const Op& op) const {
    std::vector<Result> results;
    for (ValueId value : op.results)
      results.push_back(
          value == kNone ? Result{} : Result{result_slot(value), shape_of(type(value), symbols_)});
    return results;
  }

  std::vector<Slot> frees() const {
    std::vector<Slot> slots;
    for (ValueId value : dies_)
      if (uses_.contains(value) && !contains(given_, value)) slots.push_back(slot(value));
    return slots;
  }

  TensorType type(ValueId value) const {
    return replace_bf16(graph_.values[at(value)].type, bf16_as_);
  }

  // Returns whether a cast from or to bf16 has equal compute types.
  bool is_no_cast(const Op& op) const {
    return op.name == "aten._to_copy.default" && bf16_as_ != DType::kBF16 &&
           type(operands(op)[0]) == type(op.results[0]);
  }

  decltype(Instruction::work) build(const Op& op) {
    if (accumulates(op)) {
      const Operand gradient = operand(op.arguments[0]);
      const int64_t count =
          op.arguments.size() == 1 ? 1 : evaluate(std::get<Size>(op.arguments[1]), symbols_);
      return Accumulate{
          gradient, slot(op.results[0]), to_scalar_type(type(op.results[0]).dtype), count};
    }
    const EmptyRule rule = empty_rule(graph_, op, symbols_);
    if (std::holds_alternative<FirstOperand>(rule) || is_no_cast(op)) {
      const Operand first = operand(op.arguments[0]);
      return Alias{first, result_slot(op.results[0])};
    }
    if (auto* fill = std::get_if<FillWith>(&rule)) return build_fill(op, fill->value);
    if (std::holds_alternative<AddBias>(rule)) {
      const std::vector<Size> shape = type(op.results[0]).shape;
      return build_call({"medley.expand_channels.default",
                         {op.arguments[2], shape},
                         op.results,
                         op.phase,
                         op.module,
                         op.source});
    }
    if (std::holds_alternative<SumGradient>(rule)) {
      const std::vector<ValueId> values = operands(op);
      return build_call({"medley.convolution_backward_empty.default",
                         {op.arguments[0], type(values[1]).shape, type(values[2]).shape},
                         op.results,
                         op.phase,
                         op.module,
                         op.source});
    }
    if (std::holds_alternative<DropEmpty>(rule)) return build_call(without_empty(op));
    return build_call(with_any_strides(op));
  }

  Op without_empty(Op op) const {
    for (Argument& argument : op.arguments)
      if (auto* list = std::get_if<std::vector<ValueArgument>>(&argument))
        std::erase_if(*list, [&](ValueArgument a) { return is_empty(graph_, a.value, symbols_); });
    return op;
  }

  Fill build_fill(const Op& op, double value) const {
    Fill fill{results(op), {}, value};
    for (ValueId result : op.results)
      fill.types.push_back(result == kNone ? c10::kFloat : to_scalar_type(type(result).dtype));
    return fill;
  }

  KernelCall build_call(const Op& op) {
    KernelCall call{find_operator(op.name), {}, {}, {}, results(op), false, false, {}};
    const auto& schema = call.handle.schema();
    const auto& arguments = schema.arguments();
    if (op.arguments.size() > arguments.size())
      throw Error(Blame::kCaller,
                  fmt::format("has {} arguments, but {} takes {}",
                              op.arguments.size(),
                              c10::toString(schema.operator_name()),
                              arguments.size()));
    for (size_t i = 0; i < arguments.size(); ++i) add_argument(call, op, i, arguments[i]);
    call.result_is_list = schema.returns().size() == 1 &&
                          schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
    if (!call.result_is_list && op.results.size() != schema.returns().size())
      throw Error(
          Blame::kCaller,
          fmt::format("has {} results, expected {}", op.results.size(), schema.returns().size()));
    call.contiguous = kTakesContiguous.contains(op.name);
    choose_overwrite(call, op);
    return call;
  }

  void add_argument(KernelCall& call, const Op& op, size_t i, const c10::Argument& schema) {
    if (i >= op.arguments.size()) {
      if (!schema.default_value())
        throw Error(Blame::kCaller, fmt::format("argument {} is missing", schema.name()));
      const bool is_device = schema.real_type()->annotation_str().find("Device") == 0;
      call.constants.push_back(is_device ? c10::IValue(device_) : *schema.default_value());
      return;
    }
    const Argument& argument = op.arguments[i];
    const auto* list = std::get_if<std::vector<ValueArgument>>(&argument);
    if (auto* one = std::get_if<ValueArgument>(&argument)) {
      if (!is_tensor(schema.type()))
        throw Error(Blame::kCaller, fmt::format("argument {} is no tensor", schema.name()));
      if (one->value != kNone) call.tensors.push_back({i, operand(one->value)});
      call.constants.emplace_back();
      return;
    }
    if (list || (schema.type()->kind() == c10::TypeKind::ListType &&
                 is_tensor(schema.type()->castRaw<c10::ListType>()->getElementType()))) {
      const auto element = schema.type()->castRaw<c10::ListType>()->getElementType();
      ListArgument added{i, element->kind() == c10::TypeKind::OptionalType, {}};
      if (list)
        for (const ValueArgument& each : *list) added.elements.push_back(operand(each.value));
      call.lists.push_back(std::move(added));
      call.constants.emplace_back();
      return;
    }
    call.constants.push_back(to_ivalue(argument, schema, symbols_, device_));
  }

  void choose_overwrite(KernelCall& call, const Op& op) {
    for (ValueId value : overwritable(graph_, op))
      for (TensorArgument& tensor : call.tensors) {
        const Operand& each = tensor.operand;
        if (value == kNone || each.slot.value != value || !each.dies || each.slot.run) continue;
        std::swap(call.tensors[0].operand, tensor.operand);
        const Overwriting how = *overwriting(op.name);
        call.overwrite =
            Overwrite{find_operator(std::string(how.variant)), 0, how.pass_out, how.contiguous};
        return;
      }
  }

  double number_of_update(const Argument& argument) const {
    if (const auto* flag = std::get_if<bool>(&argument)) return *flag ? 1 : 0;
    if (const auto* number = std::get_if<double>(&argument)) return *number;
    return static_cast<double>(evaluate(std::get<Size>(argument), symbols_));
  }

  // Appends a parameter's update to the previous instruction if that has the same scalars and
  // hyperparameters.
  bool join_update(const std::vector<SegmentOp>& ops,
                   size_t i,
                   std::vector<Instruction>& instructions) {
    const Op& op = ops[i].op;
    const UpdateOp* kind = find_update_op(op.name);
    if (!kind) return false;
    const size_t scalars = kind->scalars();
    MEDLEY_CHECK_EQ(op.arguments.size(), scalars + 1 + kind->more_arguments());

    JoinedUpdate update;
    if (kind->has_program)
      update.program = std::make_shared<UpdateProgram>(std::get<std::string>(op.arguments.back()));
    else
      update.update = find_update(op.name);
    for (size_t k = scalars + 1; k <= scalars + at(kind->numbers); ++k)
      update.numbers.push_back(number_of_update(op.arguments[k]));
    JoinedUpdate::Parameter parameter;
    parameter.parameter = operand_of_update(op, 0, ops, i);
    parameter.gradient = operand(op.arguments[1]);
    for (size_t k = 2; k < scalars; ++k) parameter.kept.push_back(operand_of_update(op, k, ops, i));
    for (ValueId result : op.results) parameter.replaced.push_back(slot(result));
    update.scalars = {slot(std::get<ValueArgument>(op.arguments[scalars]).value), false};

    auto* last =
        instructions.empty() ? nullptr : std::get_if<JoinedUpdate>(&instructions.back().work);
    if (last && last->update == update.update && last->numbers == update.numbers &&
        program_of(*last) == program_of(update) &&
        last->scalars.slot.value == update.scalars.slot.value) {
      last->parameters.push_back(std::move(parameter));
      const std::vector<Slot> freed = frees();
      instructions.back().frees.insert(instructions.back().frees.end(), freed.begin(), freed.end());
      return true;
    }
    update.parameters.push_back(std::move(parameter));
    instructions.push_back({std::move(update), frees(), i});
    return true;
  }

  // Gives a parameter or its state away, since the new value replaces it, unless a later op of the
  // segment reads the old one. The executor overwrites unshared memory and copies the rest.
  Operand operand_of_update(const Op& op,
                            size_t argument,
                            const std::vector<SegmentOp>& ops,
                            size_t i) {
    Operand result = operand(op.arguments[argument]);
    result.as.reset();
    const ValueId value = result.slot.value;
    if (value == kNone || uses_[value] != 1) return result;
    for (size_t k = i + 1; k < ops.size(); ++k)
      if (contains(operands(ops[k].op), value)) return result;
    result.dies = result.dies || replaced_.contains(value);
    return result;
  }

  const LoweredStage& stage_;
  const Graph& graph_;
  const std::vector<int64_t>& symbols_;
  c10::Device device_;
  DType bf16_as_;
  std::set<ValueId> stored_;    // inputs stored in bf16, for any compute type
  std::set<ValueId> replaced_;  // see replaced_values()
  std::vector<ValueId> dies_, given_;
  std::map<ValueId, int> uses_;
};

}  // namespace

PreparedOps build_instructions(const LoweredStage& stage,
                               const Segment& segment,
                               const std::vector<int64_t>& symbols,
                               c10::Device device,
                               DType bf16_as) {
  PreparedOps prepared;
  prepared.ops = fuse(stage.graph, segment, symbols);
  for (SegmentOp& op : prepared.ops) replace_bf16(op.op, bf16_as);
  prepared.instructions = Builder(stage, segment, symbols, device, bf16_as).build(prepared.ops);
  return prepared;
}

std::string describe(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols) {
  std::vector<std::string> types;
  for (ValueId value : operands(op)) {
    if (value == kNone) {
      types.emplace_back("none");
      continue;
    }
    const TensorType& type = graph.values[at(value)].type;
    const std::vector<int64_t> shape = evaluate_all(type.shape, symbols);
    types.push_back(fmt::format("{}[{}]", to_string(type.dtype), fmt::join(shape, ", ")));
  }
  std::string text = fmt::format("{}({})", op.name, fmt::join(types, ", "));
  if (!op.module.empty()) text += " in " + op.module;
  if (!op.source.empty()) text += " at " + op.source;
  return text;
}

}  // namespace medley
