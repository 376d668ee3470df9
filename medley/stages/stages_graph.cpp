// Extracts a stage as a graph: stage_graph().

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/verify.h"
#include "medley/stages/stages.h"

namespace medley {
namespace {

class StageExtractor {
 public:
  StageExtractor(const Graph& graph, const Partition& partition, int stage)
      : graph_(graph), partition_(partition), stage_(stage), local_(graph.values.size(), kNone) {
    result_.graph.name = graph.name;
    result_.graph.symbols = graph.symbols;
  }

  StageGraph run() {
    mark_inputs();
    for (const Input& input : graph_.inputs)
      if (wanted_[at(input.value)])
        define(input.value, add_input(to(), input.kind, input.name, type_of(graph_, input.value)));
    for (const Transfer& transfer : partition_.transfers)
      if (std::find(transfer.to.begin(), transfer.to.end(), stage_) != transfer.to.end())
        define(
            transfer.value,
            add_input(to(), InputKind::kReceived, transfer.name, type_of(graph_, transfer.value)));
    for (OpId id : partition_.ops[at(stage_)]) add(id);
    for (const Output& output : graph_.outputs)
      if (output.kind == OutputKind::kBuffer   ? holds(output.name)
          : output.kind == OutputKind::kMetric ? reports(output.value)
                                               : is_made(output.value))
        to().outputs.push_back({output.kind, output.name, local_[at(output.value)]});
    for (const Transfer& transfer : partition_.transfers)
      if (transfer.from == stage_)
        to().outputs.push_back({OutputKind::kSent, transfer.name, local_[at(transfer.value)]});
    verify(to());
    return std::move(result_);
  }

 private:
  Graph& to() { return result_.graph; }

  // Returns whether the stage stores a buffer that the step changes.
  bool holds(const std::string& buffer) const {
    return std::any_of(
        partition_.changing.begin(), partition_.changing.end(), [&](const Changing& changing) {
          return changing.buffer == buffer && std::ranges::count(changing.holders, stage_) > 0;
        });
  }

  // Returns whether the stage is the first with a metric, which several may compute.
  bool reports(ValueId value) const {
    const OpId producer = graph_.values[at(value)].producer;
    if (producer == kNone) return stage_ == 0;
    const auto has = [&](const std::vector<OpId>& ops) {
      return std::ranges::binary_search(ops, producer);
    };
    return std::ranges::find_if(partition_.ops, has) - partition_.ops.begin() == stage_;
  }

  // Marks inputs that ops of the stage read, or whose new value or gradient it has.
  void mark_inputs() {
    wanted_.assign(graph_.values.size(), false);
    std::vector<bool> made(graph_.values.size(), false);
    for (OpId id : partition_.ops[at(stage_)]) {
      for (ValueId value : operands(graph_.ops[at(id)]))
        if (value != kNone) wanted_[at(value)] = true;
      for (ValueId value : graph_.ops[at(id)].results)
        if (value != kNone) made[at(value)] = true;
    }
    for (const Output& output : graph_.outputs) {
      const bool buffer = output.kind == OutputKind::kBuffer;
      if (output.kind == OutputKind::kMetric && reports(output.value) &&
          graph_.values[at(output.value)].producer == kNone)
        wanted_[at(output.value)] = true;
      if (output.kind == OutputKind::kLoss || output.kind == OutputKind::kMetric ||
          !(buffer ? holds(output.name) : made[at(output.value)]))
        continue;
      const InputKind kind = buffer ? InputKind::kBuffer : InputKind::kParameter;
      for (const Input& input : graph_.inputs)
        if (input.kind == kind && input.name == output.name) wanted_[at(input.value)] = true;
      if (buffer) wanted_[at(output.value)] = true;  // maybe another input
    }
  }

  bool is_made(ValueId value) const {
    const ValueId local = local_[at(value)];
    return local != kNone && result_.graph.values[at(local)].producer != kNone;
  }

  void define(ValueId whole, ValueId local) {
    local_[at(whole)] = local;
    result_.values.resize(result_.graph.values.size(), kNone);
    result_.values[at(local)] = whole;
  }

  void add(OpId id) {
    Op op = graph_.ops[at(id)];
    std::vector<ValueId> missing, present;
    for (ValueId value : operands(op))
      if (value != kNone) (local_[at(value)] == kNone ? missing : present).push_back(value);
    // Other stages have the other terms of this sum.
    if (!missing.empty()) {
      MEDLEY_CHECK(!present.empty());
      if (op.name != "medley.add_n.default") {
        MEDLEY_CHECK_EQ(present.size(), size_t{1});
        local_[at(op.results[0])] = local_[at(present[0])];
        return;
      }
      std::vector<ValueArgument> terms;
      for (ValueId value : present) terms.push_back({value});
      op.arguments[0] = std::move(terms);
    }
    for_each_operand(op, [&](ValueId& value) { value = local_[at(value)]; });
    const std::vector<ValueId> whole = op.results;
    std::vector<TensorType> types;
    for (ValueId& value : op.results) {
      if (value == kNone) continue;
      types.push_back(type_of(graph_, value));
    }
    append(std::move(op), whole, types);
    result_.ops.push_back(id);
  }

  void append(Op op, const std::vector<ValueId>& whole, const std::vector<TensorType>& types) {
    size_t next = 0;
    const auto id = static_cast<OpId>(to().ops.size());
    for (size_t r = 0; r < whole.size(); ++r) {
      if (whole[r] == kNone) continue;
      op.results[r] = static_cast<ValueId>(to().values.size());
      to().values.push_back({types[next++], id, static_cast<int32_t>(r)});
      define(whole[r], op.results[r]);
    }
    to().ops.push_back(std::move(op));
  }

  const Graph& graph_;
  const Partition& partition_;
  const int stage_;
  std::vector<ValueId> local_;  // [global value]
  std::vector<bool> wanted_;    // [global value]
  StageGraph result_;
};

}  // namespace

StageGraph stage_graph(const Graph& graph, const Partition& partition, int stage) {
  return StageExtractor(graph, partition, stage).run();
}

}  // namespace medley
