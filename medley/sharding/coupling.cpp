#include "medley/sharding/coupling.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/graph/rewrite.h"
#include "medley/graph/verify.h"
#include "medley/sharding/choice.h"

namespace medley {
namespace {

// kConstant: for an added number, in place of the second operand.
enum class Repair : uint8_t { kNone, kSum, kShare, kConstant, kImpossible };

// Every value is independent of the batch (R), divided by rows (S) or a sum over rows (P).
// Micro-batches are exact iff every op preserves these without a reduction and without adding R to
// a sum, which would count once per micro-batch. Otherwise operands may be repaired: P becomes R if
// it needs no parameters, R becomes P.
class RowAnalysis {
 public:
  RowAnalysis(const Graph& graph, const Factors& factors, bool may_repair)
      : graph_(graph),
        factors_(factors),
        may_repair_(may_repair),
        placements_(graph.values.size()),
        known_(graph.values.size()),
        prologues_(graph.values.size()) {}

  // Returns "", or the reason for cross-sample dependence. With repairs, the first one that fails.
  std::string run() {
    mark_inputs();
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (!step(static_cast<OpId>(i))) return refusal(i);
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const Output& output = graph_.outputs[i];
      const bool sum = output.kind == OutputKind::kLoss || output.kind == OutputKind::kMetric ||
                       output.kind == OutputKind::kGradient;
      if (is_zero(output.value)) continue;
      if (output.kind == OutputKind::kMetric && has_rows(output.value)) {
        if (placements_[at(output.value)] != batch_placement(output.value))
          return "rows meet in output " + output.name;
        continue;
      }
      const Repair repair = repair_to(output.value, sum ? partial_sum() : replicated());
      if (repair == Repair::kImpossible || (repair != Repair::kNone && !may_repair_))
        return "rows meet in output " + output.name;
      if (repair != Repair::kNone) output_repairs[i] = repair;
    }
    return "";
  }

  std::map<std::pair<OpId, size_t>, Repair> repairs;  // [op, operand]
  std::map<size_t, Repair> output_repairs;            // [output]

 private:
  void mark_inputs() {
    std::set<std::string> changing;
    const std::set<std::string> carried = carried_inputs(graph_);
    for (const Output& output : graph_.outputs)
      if (output.kind == OutputKind::kBuffer) changing.insert(output.name);
    for (const Input& input : graph_.inputs) {
      placements_[at(input.value)] = batch_placement(input.value);
      known_[at(input.value)] =
          (input.kind == InputKind::kBatch && !carried.contains(input.name)) ||
          input.kind == InputKind::kScalar ||
          (input.kind == InputKind::kBuffer && !changing.contains(input.name));
    }
  }

  std::string refusal(size_t op) const {
    const std::string name = stable_names(graph_)[op];
    if (factors_.instances[op]) return "rows meet in " + name;
    return fmt::format(
        "{} has no rule that fits ({}), and takes all rows at once", name, graph_.ops[op].name);
  }

  AxisPlacement batch_placement(ValueId value) const {
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

  // Returns whether prologues can compute the sum of the value over the step.
  bool may_sum(ValueId value) const {
    return known_[at(value)] && prologues_[at(value)] < kPrologues && !has_rows(value);
  }

  bool has_rows(ValueId value) const { return batch_placement(value) != replicated(); }

  Repair repair_to(ValueId value, const AxisPlacement& wanted) const {
    const AxisPlacement& placement = placements_[at(value)];
    if (placement == wanted) return Repair::kNone;
    if (placement == partial_sum() && wanted == replicated() && may_sum(value)) return Repair::kSum;
    if (placement == replicated() && wanted == partial_sum() &&
        is_floating(type_of(graph_, value).dtype))
      return Repair::kShare;
    return Repair::kImpossible;
  }

  // Returns the repair of each operand with which the choice is possible; nullopt if it is not.
  std::optional<std::vector<Repair>> fit(OpId op, const Choice& choice, bool repaired) const {
    const std::vector<ValueId> values = operands(graph_.ops[at(op)]);
    const std::vector<AxisPlacement> wanted = operand_placements(graph_, factors_, op, choice);
    std::vector<Repair> all(values.size(), Repair::kNone);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNone || is_normaliser(op, i)) continue;
      all[i] = repair_to(values[i], wanted[i]);
      if (all[i] == Repair::kImpossible || (all[i] != Repair::kNone && !repaired))
        return std::nullopt;
    }
    return all;
  }

  // Returns whether the operand is the normaliser of a mean, summed over all micro-batches before
  // the first forward pass.
  bool is_normaliser(OpId op, size_t operand) const {
    const ValueId value = operands(graph_.ops[at(op)])[operand];
    return operand == 1 && is_mean_loss(graph_.ops[at(op)]) && may_sum(value) &&
           placements_[at(value)] == partial_sum();
  }

  bool step(OpId id) {
    const Op& op = graph_.ops[at(id)];
    const std::vector<ValueId> values = operands(op);
    const bool known = std::ranges::all_of(
        values, [&](ValueId value) { return value == kNone || known_[at(value)]; });
    for (ValueId value : op.results) {
      if (value == kNone) continue;
      if (!num_batch_factors_ok(value)) return false;
      known_[at(value)] = known;
    }
    if (op.name == kStepSum || op.name == kStepShare) {
      const bool sum = op.name == kStepSum;
      set_results(id, {sum ? replicated() : partial_sum()});
      if (sum) ++prologues_[at(op.results[0])];
      return placements_[at(values[0])] == (sum ? partial_sum() : replicated()) &&
             (!sum || may_sum(values[0]));
    }
    std::optional<Choice> choice = find_choice(id, false);
    if (!choice && may_repair_) choice = find_choice(id, true);
    if (!choice) return may_repair_ && add_constant(id);
    const std::vector<Repair> needed = *fit(id, *choice, may_repair_);
    for (size_t i = 0; i < needed.size(); ++i)
      if (needed[i] != Repair::kNone) repairs[{id, i}] = needed[i];
    set_results(id, result_placements(graph_, factors_, id, *choice));
    return true;
  }

  // Returns whether each row would read a sum over rows, of which a micro-batch has only a part.
  bool spreads(OpId id, const Choice& choice) const {
    const Op& op = graph_.ops[at(id)];
    const std::vector<AxisPlacement> placements = result_placements(graph_, factors_, id, choice);
    for (size_t i = 0; i < op.results.size(); ++i)
      if (op.results[i] != kNone && placements[i] == partial_sum() && has_rows(op.results[i]))
        return true;
    return false;
  }

  // Repairs a sum over rows plus a number: each micro-batch adds its share of the number.
  bool add_constant(OpId id) {
    const Op& op = graph_.ops[at(id)];
    if (op.name != "aten.add.Tensor" && op.name != "aten.sub.Tensor" &&
        op.name != "aten.rsub.Scalar")
      return false;
    const std::vector<ValueId> values = operands(op);
    if (values.size() != 1 || placements_[at(values[0])] != partial_sum() ||
        !is_floating(type_of(graph_, op.results[0]).dtype))
      return false;
    repairs[{id, 1}] = Repair::kConstant;
    set_results(id, {partial_sum()});
    return true;
  }

  void set_results(OpId id, const std::vector<AxisPlacement>& placements) {
    const Op& op = graph_.ops[at(id)];
    const std::vector<ValueId> values = operands(op);
    int prologues = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNone) continue;
      const auto found = repairs.find({id, i});
      const bool sum =
          is_normaliser(id, i) || (found != repairs.end() && found->second == Repair::kSum);
      prologues = std::max(prologues, prologues_[at(values[i])] + (sum ? 1 : 0));
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (op.results[i] == kNone) continue;
      placements_[at(op.results[i])] = placements[i];
      prologues_[at(op.results[i])] = prologues;
    }
  }

  std::optional<Choice> find_choice(OpId id, bool repaired) const {
    const Op& op = graph_.ops[at(id)];
    const std::vector<ValueId> values = operands(op);
    const auto fits = [&](const Choice& choice) {
      return fit(id, choice, repaired) && !spreads(id, choice);
    };
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (op.results[i] == kNone) continue;
      const std::optional<Choice> cut =
          cut_for_result(graph_, factors_, id, static_cast<int>(i), batch_placement(op.results[i]));
      if (cut && fits(*cut)) return cut;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNone) continue;
      const std::optional<Choice> cut =
          cut_for_operand(graph_, factors_, id, static_cast<int>(i), placements_[at(values[i])]);
      if (cut && fits(*cut)) return cut;
    }
    if (fits(Choice{})) return Choice{};
    const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
    for (int group = 0; instance && group < static_cast<int>(instance->linear.size()); ++group) {
      const Choice linear{ChoiceKind::kLinear, {}, -1, group};
      if (fits(linear)) return linear;
    }
    return std::nullopt;
  }

  const Graph& graph_;
  const Factors& factors_;
  const bool may_repair_;
  std::vector<AxisPlacement> placements_;
  std::vector<bool> known_;     // [value] only needs batch, constants, unchanged buffers
  std::vector<int> prologues_;  // [value] prologues after which it is known
};

// Applies the repairs of an analysis to a copy of the graph.
class Repairer {
 public:
  Repairer(const Graph& graph, const RowAnalysis& analysis)
      : graph_(graph), analysis_(analysis), rewrite_(graph) {}

  Graph run() {
    bool forward = true;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (std::exchange(forward, op.phase == Phase::kForward) && !forward) repair_outputs(false);
      Op changed = rewrite_.translate(op);
      size_t operand = 0;
      const std::vector<ValueId> values = operands(op);
      for_each_operand(changed, [&](ValueId& value) {
        while (values[operand] == kNone) ++operand;
        const auto found = analysis_.repairs.find({static_cast<OpId>(i), operand});
        if (found != analysis_.repairs.end())
          value = repaired(values[operand], found->second, op.phase);
        ++operand;
      });
      const auto constant = analysis_.repairs.find({static_cast<OpId>(i), 1});
      if (constant != analysis_.repairs.end() && constant->second == Repair::kConstant)
        add_share(changed);
      rewrite_.keep(std::move(changed));
    }
    if (forward) repair_outputs(false);
    repair_outputs(true);
    Graph result = rewrite_.finish();
    for (const auto& [output, value] : outputs_) result.outputs[output].value = value;
    return result;
  }

 private:
  // Replaces an added number by the micro-batch's share of it.
  void add_share(Op& op) {
    const TensorType number{type_of(graph_, op.results[0]).dtype, {}};
    const ValueId all = rewrite_.emit_full(op, op.arguments[1], number);
    op.arguments[1] = ValueArgument{
        rewrite_.emit(op, kStepShare, {ValueArgument{all}, Size::of(0), Size::of(0)}, number)};
    if (op.name != "aten.rsub.Scalar") return;
    op.name = "aten.sub.Tensor";
    std::swap(op.arguments[0], op.arguments[1]);
  }

  void repair_outputs(bool gradients) {
    for (const auto& [output, repair] : analysis_.output_repairs)
      if ((graph_.outputs[output].kind == OutputKind::kGradient) == gradients)
        outputs_[output] = repaired(
            graph_.outputs[output].value, repair, gradients ? Phase::kBackward : Phase::kForward);
  }

  ValueId repaired(ValueId value, Repair repair, Phase phase) {
    const auto [found, is_new] = made_.try_emplace({value, repair, phase}, kNone);
    if (is_new) {
      const Op* maker = producer_of(graph_, value);
      Op place = maker ? *maker : Op{};
      place.phase = phase;
      const ValueId now = rewrite_.now(value);
      found->second =
          repair == Repair::kSum
              ? rewrite_.emit(place, kStepSum, {ValueArgument{now}}, type_of(graph_, value))
              : rewrite_.emit(place,
                              kStepShare,
                              {ValueArgument{now}, Size::of(0), Size::of(0)},
                              type_of(graph_, value));
    }
    return found->second;
  }

  const Graph& graph_;
  const RowAnalysis& analysis_;
  Rewrite rewrite_;
  std::map<std::tuple<ValueId, Repair, Phase>, ValueId> made_;
  std::map<size_t, ValueId> outputs_;
};

}  // namespace

std::string row_coupling(const Graph& graph, const Factors& factors) {
  return RowAnalysis(graph, factors, false).run();
}

Graph with_step_sums(const Graph& graph) {
  const Factors factors = factorize(graph);
  RowAnalysis analysis(graph, factors, true);
  analysis.run();
  if (analysis.repairs.empty() && analysis.output_repairs.empty()) return graph;
  Graph result = Repairer(graph, analysis).run();
  verify(result);
  return result;
}

}  // namespace medley
