#include "medley/graph/rewrite.h"

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

Rewrite::Rewrite(const Graph& from) : from_(from), now_(from.values.size(), kNone) {
  to_.name = from.name;
  to_.symbols = from.symbols;
  to_.values.reserve(from.values.size());
  to_.ops.reserve(from.ops.size());
  for (const Input& input : from.inputs)
    replace(input.value, add_input(to_, input.kind, input.name, type_of(from, input.value)));
}

Op Rewrite::translate(const Op& op) const {
  Op translated = op;
  for_each_operand(translated, [this](ValueId& value) { value = now(value); });
  return translated;
}

void Rewrite::keep(Op translated) {
  const std::vector<ValueId> old = translated.results;
  std::vector<TensorType> types;
  for (ValueId value : old)
    if (value != kNone) types.push_back(type_of(from_, value));
  const std::vector<ValueId> fresh = add_op(to_, std::move(translated), types);
  auto next = fresh.begin();
  for (ValueId value : old)
    if (value != kNone) replace(value, *next++);
}

ValueId Rewrite::emit(const Op& place,
                      std::string_view name,
                      std::vector<Argument> arguments,
                      TensorType type) {
  Op op;
  op.name = name;
  op.arguments = std::move(arguments);
  op.phase = place.phase;
  op.module = place.module;
  op.source = place.source;
  return add_op(to_, std::move(op), {std::move(type)})[0];
}

ValueId Rewrite::emit_full(const Op& place, Argument fill, const TensorType& type) {
  const NoneArgument none;
  return emit(place,
              "aten.full.default",
              {type.shape, std::move(fill), type.dtype, none, none, none},
              type);
}

void Rewrite::replace(ValueId old, ValueId by) { now_[at(old)] = by; }

ValueId Rewrite::now(ValueId old) const {
  const ValueId value = now_[at(old)];
  MEDLEY_CHECK(value != kNone);
  return value;
}

Graph Rewrite::finish() {
  for (const Output& output : from_.outputs)
    to_.outputs.push_back({output.kind, output.name, now(output.value)});
  return std::move(to_);
}

const Op* producer_of(const Graph& graph, ValueId value) {
  const OpId producer = graph.values[at(value)].producer;
  return producer == kNone ? nullptr : &graph.ops[at(producer)];
}

ValueId tensor_argument(const Op& op, size_t i) {
  if (i >= op.arguments.size()) return kNone;
  const auto* argument = std::get_if<ValueArgument>(&op.arguments[i]);
  return argument ? argument->value : kNone;
}

std::optional<double> number_argument(const Op& op, size_t i) {
  if (i >= op.arguments.size()) return std::nullopt;
  if (const auto* number = std::get_if<double>(&op.arguments[i])) return *number;
  if (const auto* flag = std::get_if<bool>(&op.arguments[i])) return *flag ? 1.0 : 0.0;
  const auto* size = std::get_if<Size>(&op.arguments[i]);
  if (!size || !size->is_constant()) return std::nullopt;
  return static_cast<double>(size->coefficient);
}

bool has_one_result(const Op& op) { return op.results.size() == 1 && op.results[0] != kNone; }

bool has_end(const Op& op) {
  constexpr double kNoEnd = 9e18;  // PyTorch writes the largest integer
  const bool backward = op.name == "aten.slice_backward.default";
  if (!backward && op.name != "aten.slice.Tensor") return false;
  return number_argument(op, backward ? 4 : 3).value_or(kNoEnd) < kNoEnd;
}

bool is_view(const Op& op) {
  return (op.name == "aten.view.default" || op.name == "aten._unsafe_view.default" ||
          op.name == "aten.reshape.default") &&
         tensor_argument(op, 0) != kNone && has_one_result(op);
}

}  // namespace medley
