#include "medley/sharding/coupling.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/sharding/choice.h"

namespace medley {
namespace {

// Every value is free of the batch (R), one row after another (S) or a sum over rows (P).
// Micro-batches are exact iff every op can keep to these without a reduction and without adding
// something free of the batch to a sum, which would be added once a micro-batch.
class RowAnalysis {
 public:
  RowAnalysis(const Graph& graph, const Factors& factors)
      : graph_(graph), factors_(factors), states_(graph.values.size()) {}

  std::string run() {
    for (const Input& input : graph_.inputs) states_[at(input.value)] = batch_state(input.value);
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (!step(static_cast<OpId>(i))) return refusal(i);
    for (const Output& output : graph_.outputs) {
      const AxisState& state = states_[at(output.value)];
      const bool sum = output.kind == OutputKind::kLoss || output.kind == OutputKind::kMetric ||
                       output.kind == OutputKind::kGradient;
      if (state.holding != (sum ? Holding::kPartialSum : Holding::kReplicated) &&
          !is_zero(output.value))
        return "rows meet in output " + output.name;
    }
    return "";
  }

 private:
  std::string refusal(size_t op) const {
    const std::string name = stable_names(graph_)[op];
    if (factors_.instances[op]) return "rows meet in " + name;
    return fmt::format(
        "{} has no rule that fits ({}), and takes all rows at once", name, graph_.ops[op].name);
  }

  AxisState batch_state(ValueId value) const {
    const std::vector<ExtentId> flat = flat_factors(factors_, value);
    for (size_t p = 0; p < flat.size(); ++p)
      if (!factors_.extent_sizes[at(flat[p])].is_constant()) return sharded(static_cast<int>(p), 0);
    return replicated();
  }

  bool num_batch_factors_ok(ValueId value) const {
    int count = 0;
    for (ExtentId extent : flat_factors(factors_, value))
      count += static_cast<int>(factors_.extent_sizes[at(extent)].symbols.size());
    return count <= 1;
  }

  bool is_zero(ValueId value) const {
    const OpId producer = graph_.values[at(value)].producer;
    return producer != kNone && graph_.ops[at(producer)].name.find("zeros") != std::string::npos;
  }

  bool fits(OpId op, const Choice& choice) const {
    const std::vector<ValueId> values = operands(graph_.ops[at(op)]);
    const std::vector<AxisState> wanted = operand_states(graph_, factors_, op, choice);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNone) continue;
      // The weight of a mean is summed over all micro-batches before the first forward.
      const bool weight = graph_.ops[at(op)].name.starts_with("medley.mean_loss") && i == 1;
      if (!weight && states_[at(values[i])] != wanted[i]) return false;
    }
    return true;
  }

  bool step(OpId id) {
    const Op& op = graph_.ops[at(id)];
    for (ValueId value : op.results)
      if (value != kNone && !num_batch_factors_ok(value)) return false;
    const std::optional<Choice> choice = find_choice(id);
    if (!choice) return false;
    const std::vector<AxisState> results = result_states(graph_, factors_, id, *choice);
    for (size_t i = 0; i < op.results.size(); ++i)
      if (op.results[i] != kNone) states_[at(op.results[i])] = results[i];
    return true;
  }

  std::optional<Choice> find_choice(OpId id) const {
    const Op& op = graph_.ops[at(id)];
    const std::vector<ValueId> values = operands(op);
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (op.results[i] == kNone) continue;
      const std::optional<Choice> cut =
          cut_for_result(graph_, factors_, id, static_cast<int>(i), batch_state(op.results[i]));
      if (cut && fits(id, *cut)) return cut;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNone) continue;
      const std::optional<Choice> cut =
          cut_for_operand(graph_, factors_, id, static_cast<int>(i), states_[at(values[i])]);
      if (cut && fits(id, *cut)) return cut;
    }
    if (fits(id, Choice{})) return Choice{};
    const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
    for (int group = 0; instance && group < static_cast<int>(instance->linear.size()); ++group) {
      const Choice linear{ChoiceKind::kLinear, {}, -1, group};
      if (fits(id, linear)) return linear;
    }
    return std::nullopt;
  }

  const Graph& graph_;
  const Factors& factors_;
  std::vector<AxisState> states_;
};

}  // namespace

std::string row_coupling(const Graph& graph, const Factors& factors) {
  return RowAnalysis(graph, factors).run();
}

}  // namespace medley
