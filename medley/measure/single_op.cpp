#include "medley/measure/single_op.h"

#include <fmt/format.h>

#include <map>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

TensorType concrete(const TensorType& type, const std::vector<int64_t>& symbols) {
  TensorType result{type.dtype, {}};
  for (const Size& size : type.shape) result.shape.emplace_back(evaluate(size, symbols));
  return result;
}

void fill_in(Op& op, const std::vector<int64_t>& symbols) {
  for (Argument& argument : op.arguments) {
    if (auto* size = std::get_if<Size>(&argument)) {
      *size = evaluate(*size, symbols);
    } else if (auto* list = std::get_if<std::vector<Size>>(&argument)) {
      for (Size& each : *list) each = evaluate(each, symbols);
    }
  }
}

// Appends the op with inputs of the types that `operand` gives, and results of those of `result`.
template <typename OperandType, typename ResultType>
Graph graph_of(Op op, const OperandType& operand, const ResultType& result) {
  Graph graph;
  graph.name = "op";
  std::map<ValueId, ValueId> inputs;
  const std::vector<ValueId> values = operands(op);
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != kNone && !inputs.contains(values[i]))
      inputs[values[i]] = add_input(graph, InputKind::kBatch, fmt::format("x{}", i), operand(i));
  for_each_operand(op, [&](ValueId& value) { value = inputs.at(value); });
  op.phase = Phase::kForward;
  op.module.clear();
  op.source.clear();
  std::vector<TensorType> types;
  for (size_t j = 0; j < op.results.size(); ++j)
    if (op.results[j] != kNone) types.push_back(result(j));
  add_op(graph, std::move(op), types);
  return graph;
}

// The shard of an op with `length` elements of label `label`.
class Shard {
 public:
  Shard(const Graph& single, const Instance& instance, int label, int64_t length)
      : single_(single),
        op_(single.ops.at(0)),
        instance_(instance),
        label_(label),
        length_(length) {}

  Graph make() {
    form_.global = &single_;
    form_.op = &op_;
    form_.instance = &instance_;
    const std::vector<ValueId> values = operands(op_);
    for (size_t i = 0; i < values.size(); ++i)
      form_.operands.push_back(local_type(values[i], instance_.operands.at(i)));
    for (size_t j = 0; j < op_.results.size(); ++j)
      form_.results.push_back(local_type(op_.results[j], instance_.results.at(j)));
    describe_cut();
    Op local = op_;
    if (const Rule* rule = find_rule(op_.name); rule && rule->localize)
      rule->localize(local, form_);
    return graph_of(
        std::move(local),
        [&](size_t i) { return form_.operands.at(i); },
        [&](size_t j) { return form_.results.at(j); });
  }

 private:
  Size size_of(int label) const { return instance_.labels.at(at(label)).size; }

  // Returns a local type, with only the first occurrence of a label in a tensor cut.
  TensorType local_type(ValueId value, const std::vector<std::vector<int>>& dims) const {
    if (value == kNone) return {};
    TensorType type = type_of(single_, value);
    bool is_cut = false;
    for (size_t d = 0; d < dims.size(); ++d)
      for (int label : dims[d]) {
        if (label != label_ || is_cut) continue;
        is_cut = true;
        type.shape.at(d) = *divide(type.shape[d], size_of(label)) * Size(length_);
      }
    return type;
  }

  void describe_cut() {
    form_.cuts = {{{label_, 0}, length_, 0, size_of(label_)}};
    if (op_.results.empty() || op_.results[0] == kNone) return;
    bool is_cut = false;
    for (const std::vector<int>& dim : instance_.results.at(0))
      for (int label : dim) {
        const bool cut = label == label_ && !is_cut;
        is_cut = is_cut || cut;
        form_.factor_sizes.push_back(cut ? Size(length_) : size_of(label));
        form_.factor_fulls.push_back(size_of(label));
        form_.factor_offsets.emplace_back(0);
      }
  }

  const Graph& single_;
  const Op& op_;
  const Instance& instance_;
  int label_;
  int64_t length_;
  LocalForm form_;
};

}  // namespace

Graph single_op(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols) {
  Op filled = op;
  fill_in(filled, symbols);
  const std::vector<ValueId> values = operands(op);
  return graph_of(
      std::move(filled),
      [&](size_t i) { return concrete(type_of(graph, values[i]), symbols); },
      [&](size_t j) { return concrete(type_of(graph, op.results[j]), symbols); });
}

std::vector<Graph> shards(const Graph& single, int64_t pieces) {
  MEDLEY_CHECK(pieces >= 2);
  std::vector<Graph> result;
  const auto instance = instantiate(single, single.ops.at(0));
  if (!instance) return result;
  for (size_t l = 0; l < instance->labels.size(); ++l) {
    const Label& label = instance->labels[l];
    const int64_t size = label.size.coefficient;
    if (label.locked || size < pieces) continue;
    const int64_t largest = (size + pieces - 1) / pieces;
    result.push_back(Shard(single, *instance, static_cast<int>(l), largest).make());
  }
  return result;
}

}  // namespace medley
