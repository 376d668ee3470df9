#include "medley/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/ops/rule.h"
#include "medley/ops/update_ops.h"
#include "medley/prepare/recompute.h"

namespace medley {
namespace {

// Rebuilds a graph op by op; values keep their ids, new ones are appended.
class Preparer {
 public:
  Preparer(const Graph& graph, const Optimizer& optimizer, const StageContext& context)
      : optimizer_(optimizer), source_(graph), context_(context), names_(context.names) {
    prepared_.graph.name = graph.name;
    prepared_.graph.symbols = graph.symbols;
    prepared_.graph.values = graph.values;
    prepared_.graph.inputs = graph.inputs;
    for (size_t i = 0; i < graph.inputs.size(); ++i)
      if (const Input& input = graph.inputs[i]; input.kind == InputKind::kParameter)
        parameters_[input.name] = static_cast<int32_t>(i);
  }

  Prepared run() {
    move_sums_to_prologues();
    for (size_t i = 0; i < source_.ops.size(); ++i) {
      Op op = source_.ops[i];
      if (op.name == kStepSum) continue;
      for_each_operand(op, [&](ValueId& value) { value = replacement(op, value); });
      if (op.name == kLossScale && scales_loss()) {
        op.name = "medley.scale_loss.default";
        op.arguments.insert(op.arguments.end(),
                            {ValueArgument{loss_scale()}, optimizer_.loss_scale.first});
      }
      graph().ops.push_back(std::move(op));
      prepared_.names.push_back(names_[i]);
      prepared_.roles.emplace_back();
    }
    accumulate_outputs();
    for (const std::string& parameter : context_.received)
      if (!optimizer_.updates() || !context_.updated.elsewhere.contains(parameter))
        receive(parameter);
    if (optimizer_.updates()) {
      prepared_.updated = context_.updated;
      append_update();
    }
    recompute(prepared_, context_);
    relink();
    remove_unused();
    name_repeated();
    return std::move(prepared_);
  }

 private:
  Graph& graph() { return prepared_.graph; }
  bool scales_loss() const { return optimizer_.updates() && optimizer_.scales_loss; }
  // Returns the state of the loss scale. Every stage has it, since callers may query any of them.
  ValueId loss_scale() {
    if (loss_scale_ == kNone)
      loss_scale_ = add_input(
          graph(), InputKind::kState, std::string(kLossScaleState), {DType::kF64, {Size(4)}});
    return loss_scale_;
  }
  const Value& value_of(ValueId id) const { return prepared_.graph.values[at(id)]; }

  std::vector<ValueId> append(Op op,
                              const std::vector<TensorType>& types,
                              std::string name,
                              OpRole role = {}) {
    const bool is_norm = op.phase == Phase::kUpdate && role.kind == OpRole::Kind::kModel;
    prepared_.names.push_back(std::move(name));
    prepared_.roles.push_back(is_norm ? OpRole{OpRole::Kind::kNorm} : role);
    return add_op(graph(), std::move(op), types);
  }

  // The ops and inputs that a sum over the step reads.
  struct Summed {
    std::set<OpId> ops;  // the sums among them read results of earlier prologues
    int prologue = 0;    // the summing one, counted from 0
    bool rows = false;   // else it is equal for all micro-batches
  };

  // Returns nothing if the value depends on values that a step changes.
  std::optional<Summed> summed(ValueId value) const {
    Summed found;
    std::set<ValueId> seen{value};
    std::vector<ValueId> stack{value};
    while (!stack.empty()) {
      const ValueId top = stack.back();
      stack.pop_back();
      found.rows = found.rows || has_rows(source_.values[at(top)].type);
      const OpId producer = source_.values[at(top)].producer;
      if (producer == kNone) {
        if (!known_inputs_.contains(top)) return std::nullopt;
        continue;
      }
      const Op& op = source_.ops[at(producer)];
      if (op.name == kStepSum) {
        found.prologue = std::max(found.prologue, sum_of(op).prologue + 1);
        continue;
      }
      found.ops.insert(producer);
      const std::vector<ValueId> values = operands(op);
      for (size_t i = 0; i < values.size(); ++i) {
        if (const auto sum = sums_.find(values[i]); normalises(op, i) && sum != sums_.end())
          found.prologue = std::max(found.prologue, sum->second.prologue + 1);
        else if (values[i] != kNone && seen.insert(values[i]).second)
          stack.push_back(values[i]);
      }
    }
    return found;
  }

  static bool normalises(const Op& op, size_t operand) { return operand == 1 && is_mean_loss(op); }

  // Returns the sum for the operand of a kStepSum.
  const Summed& sum_of(const Op& op) const { return sums_.at(operands(op)[0]); }

  void find_sums() {
    const std::set<std::string> carried = carried_inputs(source_);
    for (const Input& input : source_.inputs)
      if ((input.kind == InputKind::kBatch && !carried.contains(input.name)) ||
          input.kind == InputKind::kScalar || input.kind == InputKind::kBuffer)
        known_inputs_.insert(input.value);
    for (const Op& op : source_.ops) {
      // A stage may have only the backward op of a mean.
      const bool mean = is_mean_loss(op);
      if (!mean && op.name != kStepSum) continue;
      const ValueId value = operands(op)[mean ? 1 : 0];
      const std::optional<Summed> found = summed(value);
      MEDLEY_CHECK(found || mean);
      if (found && (found->rows || !mean)) sums_[value] = *found;
    }
  }

  void move_sums_to_prologues() {
    find_sums();
    for (int prologue = 0; prologue < kPrologues; ++prologue) {
      std::set<OpId> needed;
      for (const auto& [value, sum] : sums_)
        if (sum.prologue == prologue) needed.insert(sum.ops.begin(), sum.ops.end());
      std::map<ValueId, ValueId> clones;
      for (OpId id : needed) clone(id, static_cast<Phase>(prologue), clones);
      for (const auto& [value, sum] : sums_) {
        if (sum.prologue != prologue) continue;
        const ValueId term = clones.contains(value) ? clones.at(value) : value;
        const size_t number = prepared_.normalisers.size();
        totals_[value] =
            accumulate(term, static_cast<Phase>(prologue), fmt::format("normaliser.{}", number));
        prepared_.roles.back() = {OpRole::Kind::kNormaliser, static_cast<int32_t>(number)};
        prepared_.normalisers.push_back(name_of(value));
      }
    }
    for (const Op& op : source_.ops)
      if (op.name == kStepSum) replaced_[op.results[0]] = totals_.at(operands(op)[0]);
  }

  void clone(OpId id, Phase phase, std::map<ValueId, ValueId>& clones) {
    Op op = source_.ops[at(id)];
    std::vector<TensorType> types;
    for (ValueId result : op.results)
      types.push_back(result == kNone ? TensorType{} : source_.values[at(result)].type);
    const std::vector<ValueId> results = op.results, values = operands(op);
    op.results.clear();
    op.phase = phase;
    for_each_operand(op, [&](ValueId& value) {
      const OpId producer = source_.values[at(value)].producer;
      if (normalises(op, 1) && value == values[1] && totals_.contains(value))
        value = totals_.at(value);
      else if (auto found = clones.find(value); found != clones.end())
        value = found->second;
      else if (producer != kNone && source_.ops[at(producer)].name == kStepSum)
        value = totals_.at(operands(source_.ops[at(producer)])[0]);
    });
    const std::vector<ValueId> fresh = append(std::move(op), types, names_[at(id)]);
    for (size_t r = 0; r < results.size(); ++r) clones[results[r]] = fresh[r];
  }

  const Input* find_input(ValueId value) const {
    const auto found = std::ranges::find(source_.inputs, value, &Input::value);
    return found == source_.inputs.end() ? nullptr : &*found;
  }

  std::string name_of(ValueId value) const {
    if (const Input* input = find_input(value)) return input->name;
    const Value& made = source_.values[at(value)];
    return fmt::format("{}.{}", names_[at(made.producer)], made.result);
  }

  // Sums are those of the whole step. A chain of views of a parameter is repeated in the backward
  // phase, so that a parameter gathered for the forward phase need not be kept.
  ValueId replacement(const Op& user, ValueId value) {
    if (auto found = replaced_.find(value); found != replaced_.end()) return found->second;
    if (is_mean_loss(user))
      if (auto found = totals_.find(value); found != totals_.end() && value == operands(user)[1])
        return found->second;
    return user.phase == Phase::kBackward ? view_in_backward(value) : value;
  }

  ValueId view_in_backward(ValueId value) {
    if (auto found = views_.find(value); found != views_.end()) return found->second;
    const OpId producer = value < static_cast<ValueId>(source_.values.size())
                              ? source_.values[at(value)].producer
                              : kNone;
    if (producer == kNone || !is_parameter_view(producer)) return value;
    Op op = source_.ops[at(producer)];
    const TensorType type = value_of(value).type;
    op.results.clear();
    op.phase = Phase::kBackward;
    for_each_operand(op, [&](ValueId& operand) { operand = view_in_backward(operand); });
    return views_[value] = append(std::move(op), {type}, names_[at(producer)])[0];
  }

  bool is_parameter_view(OpId id) const {
    const Op& op = source_.ops[at(id)];
    if (op.phase != Phase::kForward || op.results.size() != 1 ||
        work_class(op.name) != WorkClass::kView)
      return false;
    const std::vector<ValueId> values = operands(op);
    if (values.size() != 1 || values[0] == kNone) return false;
    const OpId producer = source_.values[at(values[0])].producer;
    if (producer != kNone) return is_parameter_view(producer);
    const Input* input = find_input(values[0]);
    return input && input->kind == InputKind::kParameter;
  }

  ValueId accumulate(ValueId value, Phase phase, const std::string& what) {
    Op op{"medley.accumulate.default", {ValueArgument{value}}, {}, phase, "", ""};
    return append(std::move(op), {value_of(value).type}, "accumulate/" + what)[0];
  }

  void accumulate_outputs() {
    for (const Output& output : source_.outputs) {
      Output copy = output;
      if (auto found = replaced_.find(output.value); found != replaced_.end())
        copy.value = found->second;
      if (output.kind == OutputKind::kLoss)
        copy.value = accumulate(copy.value, Phase::kForward, "loss");
      if (output.kind == OutputKind::kMetric)
        copy.value = accumulate(copy.value, Phase::kForward, output.name);
      if (output.kind == OutputKind::kGradient)
        copy.value = accumulate(copy.value, Phase::kBackward, output.name);
      if (output.kind == OutputKind::kBuffer && copy.value == output.value &&
          is_of_others(output.value))
        copy.value = append({"aten.clone.default",
                             {ValueArgument{copy.value}, NoneArgument{}},
                             {},
                             Phase::kForward,
                             "",
                             ""},
                            {value_of(copy.value).type},
                            "copy/" + output.name)[0];
      graph().outputs.push_back(copy);
    }
    reorder(in_phases());
  }

  // Returns whether a value is a parameter, which the update changes in place, a tensor of the
  // batch, which the caller may change, or a view of one.
  bool is_of_others(ValueId value) const {
    for (OpId producer = source_.values[at(value)].producer; producer != kNone;
         producer = source_.values[at(value)].producer) {
      const Op& op = source_.ops[at(producer)];
      if (work_class(op.name) != WorkClass::kView) return false;
      value = operands(op)[0];
    }
    const Input* input = find_input(value);
    return input && (input->kind == InputKind::kParameter || input->kind == InputKind::kBatch);
  }

  // Makes phases contiguous. Accumulates immediately: a gradient that waits for the end of its
  // phase is stored twice, and sent late.
  std::vector<size_t> in_phases() {
    const std::vector<Op>& ops = graph().ops;
    std::map<ValueId, size_t> made_by;
    for (size_t i = 0; i < ops.size(); ++i)
      for (ValueId result : ops[i].results) made_by[result] = i;
    std::vector<std::vector<size_t>> behind(ops.size());  // [op] accumulations of its results
    std::vector<bool> follows(ops.size(), false);
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].name != "medley.accumulate.default") continue;
      const auto maker = made_by.find(operands(ops[i])[0]);
      if (maker == made_by.end() || ops[maker->second].phase != ops[i].phase) continue;
      behind[maker->second].push_back(i);
      follows[i] = true;
    }
    std::vector<size_t> order;
    for (int phase = 0; phase < static_cast<int>(Phase::kUpdate); ++phase)
      for (size_t i = 0; i < ops.size(); ++i) {
        if (static_cast<int>(ops[i].phase) != phase || follows[i]) continue;
        order.push_back(i);
        order.insert(order.end(), behind[i].begin(), behind[i].end());
      }
    return order;
  }

  void reorder(const std::vector<size_t>& order) {
    std::vector<Op> ops;
    std::vector<std::string> names;
    std::vector<OpRole> roles;
    for (size_t i : order) {
      ops.push_back(std::move(graph().ops[i]));
      names.push_back(std::move(prepared_.names[i]));
      roles.push_back(prepared_.roles[i]);
    }
    graph().ops = std::move(ops);
    prepared_.names = std::move(names);
    prepared_.roles = std::move(roles);
  }

  // Adds a parameter's gradient whose parts are all in other stages.
  void receive(const std::string& parameter) {
    const auto found = parameters_.find(parameter);
    if (found == parameters_.end()) return;
    const TensorType type = value_of(graph().inputs[at(found->second)].value).type;
    const ValueId gradient =
        add_input(graph(), InputKind::kReceived, "gradient:" + parameter, type);
    graph().outputs.push_back({OutputKind::kGradient, parameter, gradient});
  }

  static Op update_op(std::string name, std::vector<Argument> arguments) {
    return {std::move(name), std::move(arguments), {}, Phase::kUpdate, "", ""};
  }

  void append_update() {
    const std::vector<Output> outputs = graph().outputs;
    const ValueId clip = append_norm(outputs);
    if (prepared_.scales_loss) append_next_scale();
    std::map<int, ValueId> scalars;  // by rule
    for (const Output& output : outputs) {
      if (output.kind != OutputKind::kGradient || context_.updated.elsewhere.contains(output.name))
        continue;
      const int rule = optimizer_.rule_number(output.name);
      const auto [found, is_new] = scalars.try_emplace(rule, kNone);
      if (is_new) found->second = append_scalars(rule, clip);
      append_update(output.name, parameters_.at(output.name), output.value, found->second);
    }
  }

  // Returns the factor by which the norm scales gradients; kNone without a limit.
  ValueId append_norm(const std::vector<Output>& outputs) {
    const TensorType scalar{DType::kF64, {}};
    const bool any = std::ranges::count(outputs, OutputKind::kGradient, &Output::kind) > 0;
    prepared_.scales_loss = scales_loss();
    if (!prepared_.scales_loss && (!any || (optimizer_.max_norm <= 0 && !optimizer_.gradient_norm)))
      return kNone;
    std::vector<ValueArgument> squares;
    for (const Output& output : outputs)
      if (output.kind == OutputKind::kGradient && !context_.counted_elsewhere.contains(output.name))
        squares.push_back(
            {append(update_op("medley.sum_squares.default", {ValueArgument{output.value}}),
                    {scalar},
                    "norm/" + output.name,
                    {OpRole::Kind::kNorm, parameters_.at(output.name)})[0]});
    // A stage whose gradients all count elsewhere scales them as the others do.
    const ValueId total = append(squares.empty() ? update_op("aten.full.default",
                                                             {std::vector<Size>{},
                                                              0.0,
                                                              DType::kF64,
                                                              NoneArgument{},
                                                              NoneArgument{},
                                                              NoneArgument{}})
                                                 : update_op("medley.add_n.default", {squares}),
                                 {scalar},
                                 "norm/sum",
                                 {OpRole::Kind::kNormSum})[0];
    squares_ = !prepared_.scales_loss ? total
                                      : append(update_op("medley.unscale_squares.default",
                                                         {ValueArgument{total},
                                                          ValueArgument{loss_scale()},
                                                          optimizer_.loss_scale.first}),
                                               {scalar},
                                               "norm/unscaled")[0];
    const std::vector<ValueId> clip = append(
        update_op("medley.clip_scale.default", {ValueArgument{squares_}, optimizer_.max_norm}),
        {scalar, scalar},
        "norm/scale");
    prepared_.gradient_norm = clip[0];
    return optimizer_.max_norm > 0 || prepared_.scales_loss ? clip[1] : kNone;
  }

  void append_next_scale() {
    const TensorType type = value_of(loss_scale()).type;
    const ValueId next = append(update_op("medley.next_scale.default",
                                          {ValueArgument{loss_scale()},
                                           ValueArgument{squares_},
                                           Size(optimizer_.loss_scale.good_steps)}),
                                {type},
                                "norm/next_scale")[0];
    graph().outputs.push_back({OutputKind::kState, std::string(kLossScaleState), next});
  }

  ValueId append_scalars(int rule, ValueId clip) {
    const TensorType type{DType::kF64, {Size(optimizer_.rules[at(rule)].scalars)}};
    const std::string name = scalars_of(rule);
    const ValueId scalars = add_input(graph(), InputKind::kScalar, name, type);
    if (clip == kNone) return scalars;
    if (prepared_.scales_loss)
      return append(update_op("medley.scaled_step.default",
                              {ValueArgument{scalars},
                               ValueArgument{prepared_.gradient_norm},
                               ValueArgument{clip},
                               ValueArgument{loss_scale()},
                               optimizer_.loss_scale.first,
                               optimizer_.max_norm > 0}),
                    {type},
                    "norm/" + name)[0];
    return append(
        update_op("medley.scale_scalars.default", {ValueArgument{scalars}, ValueArgument{clip}}),
        {type},
        "norm/" + name)[0];
  }

  void append_update(const std::string& name,
                     int32_t parameter,
                     ValueId gradient,
                     ValueId scalars) {
    const UpdateRule& rule = optimizer_.rule_for(name);
    const UpdateOp& kind = update_op_of(rule);
    const ValueId before = graph().inputs[at(parameter)].value;
    const TensorType type = value_of(before).type;
    std::vector<TensorType> types{type};
    std::vector<std::string> states{""};  // for the present results
    std::vector<Argument> arguments{ValueArgument{before}, ValueArgument{gradient}};
    std::vector<bool> is_there{true};
    const auto add_state = [&](std::string_view state, const std::optional<TensorType>& of) {
      is_there.push_back(of.has_value());
      if (!of) {
        arguments.emplace_back(NoneArgument{});
        return;
      }
      states.push_back(fmt::format("{}:{}", state, name));
      types.push_back(*of);
      arguments.emplace_back(
          ValueArgument{add_input(graph(), InputKind::kState, states.back(), *of)});
    };
    for (size_t i = 0; i < kind.states.size(); ++i) {
      const UpdateState& state = kind.states[i];
      const bool kept = state.unless_zero == kNone || rule.numbers[at(state.unless_zero)] != 0;
      add_state(rule.states.empty() ? state.name : std::string_view(rule.states[i]),
                !kept                      ? std::nullopt
                : kind.has_whole_program() ? program_for(rule, type.shape).states[i]
                                           : state_type(state, type));
    }
    const TensorType wide = *state_type({"master"}, type);
    add_state("master", wide.dtype != type.dtype ? std::make_optional(wide) : std::nullopt);
    arguments.emplace_back(ValueArgument{scalars});
    for (size_t i = 0; i < rule.numbers.size(); ++i)
      arguments.push_back(i + at(kind.flags) < rule.numbers.size()
                              ? Argument(rule.numbers[i])
                              : Argument(rule.numbers[i] != 0));
    if (kind.has_whole_program()) arguments.emplace_back(program_for(rule, type.shape).flops);
    if (kind.has_program) arguments.emplace_back(program_for(rule, type.shape).text);
    const std::vector<ValueId> results =
        append(update_op(std::string(kind.name), std::move(arguments)),
               types,
               "update/" + name,
               {OpRole::Kind::kUpdate, parameter});
    graph().ops.back().results.clear();
    for (size_t i = 0, next = 0; i < is_there.size(); ++i)
      graph().ops.back().results.push_back(is_there[i] ? results[next++] : kNone);
    for (size_t i = 0; i < results.size(); ++i)
      graph().outputs.push_back({i == 0 ? OutputKind::kParameter : OutputKind::kState,
                                 i == 0 ? name : states[i],
                                 results[i]});
    // Averages the master copy, if there is one.
    if (optimizer_.average > 0)
      append_average(name, results[is_there.back() ? results.size() - 1 : 0], wide, scalars);
  }

  void append_average(const std::string& name,
                      ValueId updated,
                      const TensorType& type,
                      ValueId scalars) {
    const std::string state = std::string(kAverageState) + name;
    const ValueId before = add_input(graph(), InputKind::kState, state, type);
    const ValueId average = append(update_op("medley.average.default",
                                             {ValueArgument{before},
                                              ValueArgument{updated},
                                              ValueArgument{scalars},
                                              1 - optimizer_.average}),
                                   {type},
                                   "average/" + name,
                                   {OpRole::Kind::kAverage, parameters_.at(name)})[0];
    graph().outputs.push_back({OutputKind::kState, state, average});
  }

  void relink() {
    for (size_t i = 0; i < graph().ops.size(); ++i)
      for (size_t r = 0; r < graph().ops[i].results.size(); ++r)
        if (const ValueId result = graph().ops[i].results[r]; result != kNone) {
          graph().values[at(result)].producer = static_cast<OpId>(i);
          graph().values[at(result)].result = static_cast<int32_t>(r);
        }
  }

  // Removes unread ops, left by normalisers recomputed in the prologue and by views of parameters.
  void remove_unused() {
    std::vector<bool> used(graph().values.size(), false);
    for (const Output& output : graph().outputs) used[at(output.value)] = true;
    if (prepared_.gradient_norm != kNone) used[at(prepared_.gradient_norm)] = true;
    std::vector<size_t> order;
    for (size_t i = graph().ops.size(); i-- > 0;) {
      bool any = false;
      for (ValueId result : graph().ops[i].results)
        any = any || (result != kNone && used[at(result)]);
      if (!any) continue;
      for (ValueId operand : operands(graph().ops[i]))
        if (operand != kNone) used[at(operand)] = true;
      order.push_back(i);
    }
    reorder({order.rbegin(), order.rend()});
    renumber();
    relink();
  }

  // Renames an op that a prologue does and a later phase repeats. Other ops of the two differ, so a
  // plan decides about each by itself.
  void name_repeated() {
    std::set<std::string> later;
    for (size_t i = graph().ops.size(); i-- > 0;) {
      std::string& name = prepared_.names[i];
      const Phase phase = graph().ops[i].phase;
      if (!later.insert(name).second && is_prologue(phase))
        name = fmt::format("{}/{}", to_string(phase), name);
    }
  }

  // Drops the values without a definition.
  void renumber() {
    std::vector<ValueId> ids(graph().values.size(), kNone);
    std::vector<Value> values;
    const auto define = [&](ValueId& id) {
      if (id == kNone) return;
      ids[at(id)] = static_cast<ValueId>(values.size());
      values.push_back(graph().values[at(id)]);
      id = ids[at(id)];
    };
    for (Input& input : graph().inputs) define(input.value);
    for (Op& op : graph().ops) {
      for_each_operand(op, [&](ValueId& value) { value = ids[at(value)]; });
      for (ValueId& result : op.results) define(result);
    }
    for (Output& output : graph().outputs) output.value = ids[at(output.value)];
    if (prepared_.gradient_norm != kNone)
      prepared_.gradient_norm = ids[at(prepared_.gradient_norm)];
    graph().values = std::move(values);
  }

  const Optimizer& optimizer_;
  const Graph& source_;
  const StageContext& context_;
  const std::vector<std::string>& names_;  // for the source's ops
  Prepared prepared_;
  ValueId loss_scale_ = kNone, squares_ = kNone;
  std::map<std::string, int32_t> parameters_;  // their places among the inputs
  std::set<ValueId> known_inputs_;             // unchanged by a step
  std::map<ValueId, Summed> sums_;             // by the summed value
  std::map<ValueId, ValueId> totals_;          // likewise -> its sum
  std::map<ValueId, ValueId> replaced_;        // result of a kStepSum -> the sum
  std::map<ValueId, ValueId> views_;  // view of a parameter -> its copy in the backward phase
};

}  // namespace

const std::string* parameter_of(const Prepared& prepared, OpId op) {
  const OpRole& role = prepared.roles[at(op)];
  if (role.kind == OpRole::Kind::kNormaliser || role.of == kNone) return nullptr;
  return &prepared.graph.inputs[at(role.of)].name;
}

const std::string* find_share(const Prepared& prepared, OpId op) {
  const std::string* parameter = parameter_of(prepared, op);
  return parameter && prepared.updated.shares.contains(*parameter) ? parameter : nullptr;
}

bool is_received_gradient(const Graph& graph, ValueId value) {
  return graph.values[at(value)].producer == kNone &&
         std::ranges::any_of(graph.outputs, [&](const Output& output) {
           return output.kind == OutputKind::kGradient && output.value == value;
         });
}

Prepared prepare(const Graph& graph, const Optimizer& optimizer) {
  return prepare(graph, optimizer, StageContext{.names = stable_names(graph)});
}

Prepared prepare(const Graph& graph, const Optimizer& optimizer, const StageContext& context) {
  return Preparer(graph, optimizer, context).run();
}

}  // namespace medley
