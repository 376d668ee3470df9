#include "medley/lower/complete.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/ops/update_ops.h"
#include "medley/plan/match.h"
#include "medley/plan/texts.h"
#include "medley/prepare/recompute.h"
#include "medley/sharding/redistribution.h"

namespace medley {
namespace {

class Completer {
 public:
  Completer(const Prepared& prepared,
            const Factors& factors,
            const Plan& plan,
            const Pipeline& pipeline,
            const Stage& stage)
      : prepared_(prepared),
        graph_(prepared.graph),
        names_(prepared.names),
        originals_(originals(prepared)),
        factors_(factors),
        stage_(stage),
        planned_ops_(stage.ops),
        planned_placements_(stage.placements),
        planned_batch_(stage.batch),
        planned_updates_(stage.updates) {
    result_.parts = parts_of(plan, pipeline);
    for (const Part& part : result_.parts) result_.part_names.push_back(part.name);
    rows_ = !pipeline.microbatches.empty() && !pipeline.microbatches[0].lengths.empty() ? 0 : -1;
    symbols_ = {pipeline.microbatches.empty() ? 1 : pipeline.microbatches[0].rows};
  }

  Assignment run() {
    result_.choices.resize(graph_.ops.size());
    result_.placements.resize(graph_.values.size());
    available_.resize(graph_.values.size());
    check_names();
    for (const Input& input : graph_.inputs) set_placement(input.value, input_placement(input));
    for (size_t i = 0; i < graph_.ops.size(); ++i) choose(static_cast<OpId>(i));
    if (!result_.to_expand.empty()) return std::move(result_);
    for (const Output& output : graph_.outputs)
      result_.stored.push_back({output_placement(output)});
    return std::move(result_);
  }

 private:
  const Placement& placement(ValueId value) const { return result_.placements[at(value)]; }
  size_t num_axes() const { return stage_.mesh.shape.size(); }
  Placement whole() const { return Placement(num_axes()); }
  const TensorType& type(ValueId value) const { return graph_.values[at(value)].type; }

  void set_placement(ValueId value, const Placement& placement) {
    result_.placements[at(value)] = placement;
    available_[at(value)].insert(placement);
  }

  int part_index(const std::string& name, const std::string& place) const {
    const auto found = std::find(result_.part_names.begin(), result_.part_names.end(), name);
    if (found == result_.part_names.end())
      throw Error(Blame::kCaller, fmt::format("plan: {}: no part is named \"{}\"", place, name));
    return static_cast<int>(found - result_.part_names.begin());
  }

  // Rejects entries that match no op, which would be dropped silently.
  void check_names() const {
    const std::set<std::string_view> exact(names_.begin(), names_.end());
    for (const auto& [pattern, text] : stage_.ops)
      if (!exact.contains(pattern) &&
          std::none_of(names_.begin(), names_.end(), [&, p = &pattern](const std::string& name) {
            return matches(*p, name);
          }))
        throw Error(Blame::kCaller,
                    fmt::format("plan: ops[\"{}\"]: matches no op of the graph", pattern));
  }

  Placement parse_placement(ValueId value,
                            const std::string& text,
                            const std::string& place) const {
    const auto parsed = parse_placement_text(text);
    if (!parsed)
      throw Error(Blame::kCaller,
                  fmt::format("plan: {}: found \"{}\", expected {}", place, text, kPlacementForms));
    Placement result;
    for (const PlacementText& axis : *parsed)
      result.push_back(parse_axis(value, axis, result.size(), place));
    return result;
  }

  AxisPlacement parse_axis(ValueId value,
                           const PlacementText& wanted,
                           size_t axis,
                           const std::string& place) const {
    if (wanted.kind == PlacementText::Kind::kPartialSum)
      throw Error(Blame::kCaller,
                  fmt::format("plan: {}: found \"P\": nothing is stored as a partial sum", place));
    if (wanted.kind == PlacementText::Kind::kReplicated) return replicated();
    const auto& dims = factors_.values[at(value)];
    if (wanted.dim < 0 || wanted.dim >= static_cast<int>(dims.size()))
      throw Error(
          Blame::kCaller,
          fmt::format(
              "plan: {}: found dim {}, expected less than {}", place, wanted.dim, dims.size()));
    const auto& factors = dims[at(wanted.dim)];
    if (wanted.factor < 0 || wanted.factor >= static_cast<int>(factors.size()))
      throw Error(Blame::kCaller,
                  fmt::format("plan: {}: found factor {} of dim {}, which has {}",
                              place,
                              wanted.factor,
                              wanted.dim,
                              factors.size()));
    const int part = part_index(wanted.part, place);
    const Size& size = factors_.extent_sizes[at(factors[at(wanted.factor)])];
    const bool batch = size == Size::of(0);
    if (part == rows_ ? !batch || axis > 0 : batch && axis == 0)
      throw Error(Blame::kCaller,
                  fmt::format("plan: {}: the part \"rows\" and the batch go together on the first "
                              "axis, and only they do",
                              place));
    return sharded(position_of(factors_, value, wanted.dim, wanted.factor), part);
  }

  Placement input_placement(const Input& input) {
    const auto named = [&](const ChoiceFinder& texts,
                           const char* field,
                           const std::string& name) -> std::optional<Placement> {
      const std::string* text = texts.find(name);
      if (!text) return std::nullopt;
      return parse_placement(input.value, *text, fmt::format("{}[\"{}\"]", field, name));
    };
    switch (input.kind) {
      case InputKind::kParameter: {
        const Placement stored =
            named(planned_placements_, "placements", input.name).value_or(whole());
        stored_[{InputKind::kParameter, input.name}] = stored;
        const std::optional<Placement> update = named(planned_updates_, "updates", input.name);
        updates_[input.name] = {input.value, update.value_or(stored)};
        return stored;
      }
      case InputKind::kBuffer:
        return stored_[{InputKind::kBuffer, input.name}] =
                   named(planned_placements_, "placements", input.name).value_or(whole());
      case InputKind::kState:
        return stored_[{InputKind::kState, input.name}] = optimizer_state_placement(input);
      case InputKind::kScalar:
        return whole();
      case InputKind::kBatch:
      case InputKind::kReceived: {
        Placement default_placement = whole();
        default_placement[0] = batch_placement(input.value);
        return named(planned_batch_, "batch", input.name).value_or(default_placement);
      }
    }
    return whole();
  }

  // Returns the placement of the update if it is divided as the parameter is.
  Placement optimizer_state_placement(const Input& input) const {
    if (input.role.kind == StateRole::Kind::kLossScale) return whole();
    const auto& [parameter, placement] = updates_.at(input.role.of);
    return factors_.values[at(input.value)] == factors_.values[at(parameter)] ? placement : whole();
  }

  // Returns the first factor that is the batch, divided into rows on the first axis.
  AxisPlacement batch_placement(ValueId value) const {
    if (rows_ < 0) return replicated();
    const std::vector<ExtentId> flat = flat_factors(factors_, value);
    for (size_t p = 0; p < flat.size(); ++p)
      if (factors_.extent_sizes[at(flat[p])] == Size::of(0))
        return sharded(static_cast<int>(p), rows_);
    return replicated();
  }

  Placement output_placement(const Output& output) const {
    switch (output.kind) {
      case OutputKind::kLoss:
      case OutputKind::kMetric:
        return whole();
      case OutputKind::kGradient:
        return updates_.at(output.name).placement;
      case OutputKind::kBuffer:
        return stored_.at({InputKind::kBuffer, output.name});
      case OutputKind::kParameter:
        return stored_.at({InputKind::kParameter, output.name});
      case OutputKind::kState:
        return stored_.at({InputKind::kState, output.name});
      case OutputKind::kSent:
        return placement(output.value);
    }
    return whole();
  }

  // The plan's entry for an op.
  struct Planned {
    std::string_view text;
    std::vector<ChoiceText> axes;
  };
  std::optional<Planned> planned_for(OpId id) const {
    const std::string& name = names_[at(id)];
    const std::string* text = planned_ops_.find(name);
    if (!text) return std::nullopt;
    const auto parsed = parse_choice_text(*text);
    if (!parsed)
      throw Error(
          Blame::kCaller,
          fmt::format("plan: ops[\"{}\"]: found \"{}\", expected {}", name, *text, kChoiceForms));
    return Planned{*text, *parsed};
  }

  void choose(OpId id) {
    const Op& op = graph_.ops[at(id)];
    const std::optional<Planned> planned = planned_for(id);
    if (expand_first(id, planned)) {
      result_.to_expand.push_back(id);
      for (ValueId result : op.results)
        if (result != kNone) set_placement(result, whole());
      return;
    }
    const std::vector<Choice> choice = decide(id, planned);
    result_.choices[at(id)] = choice;
    const std::vector<ValueId> values = operands(op);
    const std::vector<Placement> wanted = operand_placements(graph_, factors_, id, choice);
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != kNone) available_[at(values[i])].insert(wanted[i]);
    const std::vector<Placement> results = result_placements(graph_, factors_, id, choice);
    for (size_t i = 0; i < results.size(); ++i)
      if (op.results[i] != kNone) set_placement(op.results[i], results[i]);
    if (op.name == "medley.accumulate.default") announce_gradient(id);
  }

  // Returns the choices of an op. Recomputed ops repeat the decision.
  std::vector<Choice> decide(OpId id, const std::optional<Planned>& planned) const {
    const OpId original = originals_[at(id)];
    if (original != kNone) return result_.choices[at(original)];
    // By axis: the planned choice, or all valid ones.
    std::vector<std::vector<Choice>> open;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      const std::optional<Choice> choice = choice_on(id, planned, axis);
      open.push_back(choice ? std::vector<Choice>{*choice} : candidates(id, axis));
    }
    return cheapest(id, open);
  }

  // Makes the gradient available in the placement of its update, for other readers such as the
  // norm.
  void announce_gradient(OpId id) {
    const ValueId value = graph_.ops[at(id)].results[0];
    for (const Output& output : graph_.outputs)
      if (output.kind == OutputKind::kGradient && output.value == value)
        available_[at(value)].insert(updates_.at(output.name).placement);
  }

  // Replaces an op with a cut composite label by its expansion before any other decision.
  bool expand_first(OpId id, const std::optional<Planned>& planned) const {
    if (const OpId original = originals_[at(id)]; original != kNone)
      return std::count(result_.to_expand.begin(), result_.to_expand.end(), original) > 0;
    const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
    const Op& op = graph_.ops[at(id)];
    if (!instance || !has_expansion(op.name)) return false;
    if (std::none_of(instance->labels.begin(), instance->labels.end(), [](const Label& label) {
          return label.composite;
        }))
      return false;
    if (planned) return is_replaced(planned->axes);
    const std::vector<ValueId> values = operands(op);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kNone) continue;
      for (const AxisPlacement& axis : placement(values[i]))
        if (axis.holding == Holding::kSharded && cuts_composite(id, i, axis.position)) return true;
    }
    return false;
  }

  bool cuts_composite(OpId id, size_t operand, int at) const {
    const Instance& instance = *factors_.instances[static_cast<size_t>(id)];
    int position = 0;
    for (const std::vector<int>& dim : instance.operands[operand])
      for (int label : dim) {
        const int count = static_cast<int>(
            factors_.labels[static_cast<size_t>(id)][static_cast<size_t>(label)].size());
        if (at >= position && at < position + count &&
            instance.labels[static_cast<size_t>(label)].composite)
          return true;
        position += count;
      }
    return false;
  }

  static bool is_replaced(const std::vector<ChoiceText>& axes) {
    return std::any_of(axes.begin(), axes.end(), [](const ChoiceText& axis) {
      return axis.kind == ChoiceText::Kind::kComposite;
    });
  }

  // Returns nothing if the choice is open.
  std::optional<Choice> choice_on(OpId id,
                                  const std::optional<Planned>& planned,
                                  size_t axis) const {
    const std::string& name = names_[at(id)];
    const OpRole::Kind role = prepared_.roles[at(id)].kind;
    const std::string* parameter = parameter_of(prepared_, id);
    if (role != OpRole::Kind::kAverage && find_share(prepared_, id)) {
      const Choice choice = choice_of_update(id, *parameter, axis);
      if (planned && planned->axes[axis].kind != ChoiceText::Kind::kOpen &&
          resolve(id, planned->axes[axis], name) != choice)
        throw Error(Blame::kCaller,
                    fmt::format("plan: ops[\"{}\"]: found \"{}\", expected what updates[\"{}\"] "
                                "says, since owners divide that",
                                name,
                                planned->text,
                                *parameter));
      return choice;
    }
    if (planned) {
      // A composite's replacement has other labels: it follows its operands on all axes.
      if (planned->axes[axis].kind == ChoiceText::Kind::kOpen || is_replaced(planned->axes))
        return std::nullopt;
      const std::optional<Choice> choice = resolve(id, planned->axes[axis], name);
      if (choice && !is_legal(factors_, id, *choice))
        throw Error(Blame::kCaller,
                    fmt::format("plan: ops[\"{}\"]: the rule of {} does not permit \"{}\", "
                                "expected {}",
                                name,
                                graph_.ops[at(id)].name,
                                planned->text,
                                permitted(id)));
      if (choice && choice->kind == ChoiceKind::kCut && choice->part == rows_ &&
          (axis > 0 ||
           factors_.extent_sizes[at(extent_of(factors_, id, choice->cut))] != Size::of(0)))
        throw Error(Blame::kCaller,
                    fmt::format("plan: ops[\"{}\"]: found \"{}\", expected another part: \"rows\" "
                                "divides the batch, on the first axis",
                                name,
                                planned->text));
      return choice;
    }
    if (role == OpRole::Kind::kUpdate || role == OpRole::Kind::kAverage)
      return choice_of_update(id, *parameter, axis);
    return std::nullopt;
  }

  // Returns the choice at the placement of the parameter's update.
  Choice choice_of_update(OpId id, const std::string& parameter, size_t axis) const {
    const AxisPlacement& update = updates_.at(parameter).placement[axis];
    const UpdateOp* op = find_update_op(graph_.ops[at(id)].name);
    const UpdateUnit unit = op ? op->unit : UpdateUnit::kElement;
    if (update.holding != Holding::kSharded || unit == UpdateUnit::kTensor) return Choice{};
    const std::optional<Choice> cut = cut_for_operand(graph_, factors_, id, 0, update);
    if (!cut && unit == UpdateUnit::kRow) return Choice{};
    if (!cut)
      throw Error(
          Blame::kCaller,
          fmt::format("plan: updates[\"{}\"]: this parameter cannot be cut there", parameter));
    return *cut;
  }

  // Returns the valid choices of an op, for messages.
  std::string permitted(OpId id) const {
    std::string labels, all = "\"replicate\"";
    const Instance& instance = *factors_.instances[at(id)];
    for (size_t l = 0; l < instance.labels.size(); ++l)
      if (is_legal(factors_, id, {ChoiceKind::kCut, {static_cast<int>(l), 0}, -1, -1}))
        labels += (labels.empty() ? "" : ", ") + instance.labels[l].name;
    if (!labels.empty()) all += fmt::format(", a label ({}) and a part", labels);
    for (const std::vector<int>& group : instance.linear)
      all += fmt::format(", \"linear {{{}}}\"", fmt::join(group, "+"));
    return all;
  }

  std::optional<Choice> resolve(OpId id, const ChoiceText& text, const std::string& name) const {
    if (text.kind == ChoiceText::Kind::kReplicate) return Choice{};
    const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
    if (!instance)
      throw Error(Blame::kCaller,
                  fmt::format("plan: ops[\"{}\"]: {} has no rule: expected \"replicate\"",
                              name,
                              graph_.ops[at(id)].name));
    if (text.kind == ChoiceText::Kind::kLinear) {
      for (size_t g = 0; g < instance->linear.size(); ++g)
        if (instance->linear[g] == text.group)
          return Choice{ChoiceKind::kLinear, {}, -1, static_cast<int>(g)};
      return Choice{ChoiceKind::kLinear, {}, -1, -1};
    }
    for (size_t l = 0; l < instance->labels.size(); ++l)
      if (instance->labels[l].name == text.label)
        return Choice{ChoiceKind::kCut,
                      {static_cast<int>(l), text.factor},
                      part_index(text.part, fmt::format("ops[\"{}\"]", name)),
                      -1};
    return Choice{ChoiceKind::kCut, {}, -1, -1};
  }

  std::vector<Choice> candidates(OpId id, size_t axis) const {
    const Op& op = graph_.ops[at(id)];
    const std::vector<ValueId> values = operands(op);
    std::vector<Choice> all;
    const auto add = [&](const std::optional<Choice>& choice) {
      if (choice && std::find(all.begin(), all.end(), *choice) == all.end()) all.push_back(*choice);
    };
    for (size_t r = 0; axis == 0 && r < op.results.size(); ++r)
      if (op.results[r] != kNone)
        add(cut_for_result(
            graph_, factors_, id, static_cast<int>(r), batch_placement(op.results[r])));
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != kNone)
        for (const Placement& available : available_[at(values[i])])
          add(cut_for_operand(graph_, factors_, id, static_cast<int>(i), available[axis]));
    const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
    const WorkClass work = work_class(op.name);
    // Avoids partial sums through a matmul, which every device would compute whole.
    for (size_t g = 0; instance && (work == WorkClass::kMemory || work == WorkClass::kView) &&
                       g < instance->linear.size();
         ++g)
      for (int operand : instance->linear[g])
        if (const ValueId value = values[at(operand)];
            value != kNone && placement(value)[axis].holding == Holding::kPartialSum)
          add(Choice{ChoiceKind::kLinear, {}, -1, static_cast<int>(g)});
    all.push_back(Choice{});
    return all;
  }

  // Searches all combinations.
  std::vector<Choice> cheapest(OpId id, const std::vector<std::vector<Choice>>& open) const {
    using Cost = std::tuple<double, int, size_t>;  // bytes moved, redistributions, order
    std::optional<Cost> best_cost;
    std::vector<Choice> best;
    const std::vector<ValueId> values = operands(graph_.ops[at(id)]);
    size_t combinations = 1;
    for (const std::vector<Choice>& axis : open) combinations *= axis.size();
    for (size_t c = 0; c < combinations; ++c) {
      std::vector<Choice> choice(open.size());
      size_t left = c;
      for (size_t axis = open.size(); axis-- > 0; left /= open[axis].size())
        choice[axis] = open[axis][left % open[axis].size()];
      if (combinations == 1) return choice;
      const std::vector<Placement> wanted = operand_placements(graph_, factors_, id, choice);
      double bytes = 0;
      int redistributions = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] == kNone || available_[at(values[i])].contains(wanted[i])) continue;
        bytes += redistribution_bytes(static_cast<double>(num_bytes(type(values[i]), symbols_)),
                                      placement(values[i]),
                                      wanted[i],
                                      stage_.mesh.shape);
        ++redistributions;
      }
      const Cost cost{bytes, redistributions, c};
      if (!best_cost || cost < *best_cost) {
        best_cost = cost;
        best = std::move(choice);
      }
    }
    return best;
  }

  const Prepared& prepared_;
  const Graph& graph_;
  const std::vector<std::string>& names_;
  const std::vector<OpId> originals_;  // [op] the op that it repeats, or kNone
  const Factors& factors_;
  const Stage& stage_;
  const ChoiceFinder planned_ops_, planned_placements_, planned_batch_, planned_updates_;
  int rows_ = -1;  // index of the part "rows"
  std::vector<int64_t> symbols_;
  std::vector<std::set<Placement>> available_;  // [value] placements that exist anyway
  std::map<std::pair<InputKind, std::string>, Placement> stored_;
  struct Update {
    ValueId parameter = kNone;
    Placement placement;
  };
  std::map<std::string, Update> updates_;  // by parameter
  Assignment result_;
};

}  // namespace

std::vector<Part> parts_of(const Plan& plan, const Pipeline& pipeline) {
  std::vector<Part> parts;
  if (!pipeline.microbatches.empty() && !pipeline.microbatches[0].lengths.empty())
    parts.push_back({"rows", {}, {}});
  parts.push_back({"even", {}, {}});
  for (const Part& part : plan.parts)
    if (part.name != "rows" && part.name != "even") parts.push_back(part);
  return parts;
}

namespace {

double redistribution_bytes(double value_bytes,
                            const AxisPlacement& from,
                            const AxisPlacement& to,
                            int64_t devices) {
  if (from == to || devices == 1) return 0;
  const auto count = static_cast<double>(devices);
  const double share = (count - 1.0) / count;
  const bool local = to.holding == Holding::kPartialSum && from.holding != Holding::kPartialMax;
  if (from.holding == Holding::kReplicated || local) return 0;
  if (from.holding == Holding::kSharded)
    return to.holding == Holding::kSharded ? value_bytes * share / count : value_bytes * share;
  return to.holding == Holding::kSharded && from.holding == Holding::kPartialSum
             ? value_bytes * share
             : 2 * value_bytes * share;
}

}  // namespace

double redistribution_bytes(double value_bytes,
                            const Placement& from,
                            const Placement& to,
                            const std::vector<int64_t>& mesh) {
  double bytes = 0;
  Placement now = from;
  for (const auto& [axis, next] : redistribution_steps(from, to)) {
    const auto changed = at(axis);
    double held = value_bytes;
    for (size_t other = 0; other < mesh.size(); ++other)
      if (other != changed && now[other].holding == Holding::kSharded)
        held /= static_cast<double>(mesh[other]);
    bytes += redistribution_bytes(held, now[changed], next, mesh[changed]);
    now[changed] = next;
  }
  return bytes;
}

Assignment complete(const Prepared& prepared,
                    const Factors& factors,
                    const Plan& plan,
                    const Pipeline& pipeline,
                    const Stage& stage) {
  return Completer(prepared, factors, plan, pipeline, stage).run();
}

}  // namespace medley
