// Assigns a position to every op, before any cut: place().

#include <algorithm>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/ops/rule.h"
#include "medley/stages/stages.h"

namespace medley {
namespace {

constexpr double kCheapFlopsPerByte = 16;

class Placer {
 public:
  explicit Placer(const Graph& graph)
      : graph_(graph),
        symbols_(graph.symbols.size(), 7),  // arbitrary: only sizes are compared
        depends_(graph.values.size()),
        readers_(graph.values.size()),
        parameters_(graph.values.size()),
        outputs_(graph.values.size()),
        parameter_only_(graph.ops.size()),
        summed_(graph.ops.size()) {
    result_.presence.assign(graph.ops.size(), Presence::kOnce);
    result_.position.assign(graph.ops.size(), kNone);
    result_.last_read.assign(graph.values.size(), kNone);
    for (size_t v = 0; v < graph.values.size(); ++v)
      result_.root.push_back(static_cast<ValueId>(v));
  }

  Positions run() {
    note_readers();
    mark_inputs();
    mark_summed();
    for (size_t i = 0; i < graph_.ops.size(); ++i) classify(static_cast<OpId>(i));
    find_last_readers();
    find_uses();
    for (size_t i = 0; i < graph_.ops.size(); ++i) place_backward(static_cast<OpId>(i));
    split_sums();
    for (size_t i = graph_.ops.size(); i-- > 0;) move_down(static_cast<OpId>(i));
    return std::move(result_);
  }

 private:
  struct Depends {
    bool batch = false, parameter = false;
    bool received = false;
    bool once = false;  // on an op computed once
  };

  const Op& op(OpId id) const { return graph_.ops[at(id)]; }
  OpId producer(ValueId value) const { return graph_.values[at(value)].producer; }
  bool backward(OpId id) const { return op(id).phase == Phase::kBackward; }
  // Returns the position of the op whose result is sent instead of the value.
  int32_t position_of(ValueId value) const {
    return result_.position[at(producer(result_.root[at(value)]))];
  }
  // Returns whether each stage has the value itself: an input, or recomputed.
  bool everywhere(ValueId value) const { return !depends_[at(value)].once; }
  int64_t bytes(ValueId value) const { return num_bytes(type_of(graph_, value), symbols_); }

  void note_readers() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      MEDLEY_CHECK(graph_.ops[i].phase != Phase::kUpdate);
      for (ValueId value : operands(graph_.ops[i]))
        if (value != kNone) readers_[at(value)].push_back(static_cast<OpId>(i));
    }
  }

  void mark_inputs() {
    for (const Input& input : graph_.inputs) {
      Depends& depends = depends_[at(input.value)];
      depends.batch = input.kind == InputKind::kBatch;
      depends.parameter = input.kind == InputKind::kParameter;
      depends.received = depends.once = input.kind == InputKind::kReceived;
      if (depends.parameter) parameters_[at(input.value)] = {input.value};
    }
    std::map<std::string, ValueId> inputs;
    for (const Input& input : graph_.inputs)
      if (input.kind == InputKind::kParameter) inputs[input.name] = input.value;
    for (const Output& output : graph_.outputs) {
      if (output.kind == OutputKind::kGradient)
        outputs_[at(output.value)].push_back(inputs.at(output.name));
      if (output.kind != OutputKind::kBuffer) continue;
      for (const Input& input : graph_.inputs)  // changed in every step: no constant
        if (input.kind == InputKind::kBuffer && input.name == output.name)
          depends_[at(input.value)].once = true;
    }
  }

  // Marks the ops that a sum over the step reads, which run before any stage.
  void mark_summed() {
    for (size_t i = graph_.ops.size(); i-- > 0;) {
      const bool mean = is_mean_loss(graph_.ops[i]);
      summed_[i] = summed_[i] || graph_.ops[i].name == kStepSum;
      const std::vector<ValueId> values = operands(graph_.ops[i]);
      for (size_t k = 0; k < values.size(); ++k)
        if ((summed_[i] || (mean && k == 1)) && values[k] != kNone && producer(values[k]) != kNone)
          summed_[at(producer(values[k]))] = true;
    }
  }

  void classify(OpId id) {
    Depends depends;
    for (ValueId value : operands(op(id))) {
      if (value == kNone) continue;
      depends.batch |= depends_[at(value)].batch;
      depends.parameter |= depends_[at(value)].parameter;
      depends.received |= depends_[at(value)].received;
      depends.once |= depends_[at(value)].once;
      parameters_of(value);
    }
    const bool again = !depends.once && !(depends.batch && depends.parameter) &&
                       (summed_[at(id)] || is_cheap(op(id)));
    const ValueId of = again ? kNone : viewed(op(id));
    depends.once = !again;
    for (ValueId value : op(id).results) {
      if (value == kNone) continue;
      depends_[at(value)] = depends;
      if (again) parameters_[at(value)] = found_;
    }
    found_.clear();
    if (again || of != kNone) result_.presence[at(id)] = Presence::kWhereRead;
    if (of != kNone) result_.root[at(op(id).results[0])] = result_.root[at(of)];
    if (again || of != kNone || backward(id)) return;
    forward_.push_back(id);
    const auto next = static_cast<int32_t>(result_.sequence.size());
    // Counters, such as of steps, belong to the op before them and create no stage.
    const bool counter = !depends.batch && !depends.parameter && !depends.received;
    result_.position[at(id)] = counter ? std::max(next - 1, 0) : next;
    if (!counter) result_.sequence.push_back(id);
  }

  // Collects in `found_`.
  void parameters_of(ValueId value) {
    if (depends_[at(value)].once) return;
    for (ValueId parameter : parameters_[at(value)])
      if (std::find(found_.begin(), found_.end(), parameter) == found_.end())
        found_.push_back(parameter);
  }

  bool is_cheap(const Op& op) const {
    std::vector<TensorType> from, to;
    for (ValueId value : operands(op))
      from.push_back(value == kNone ? TensorType{} : type_of(graph_, value));
    int64_t made = 0;
    for (ValueId value : op.results) {
      to.push_back(value == kNone ? TensorType{} : type_of(graph_, value));
      if (value != kNone) made += bytes(value);
    }
    const WorkClass kind = work_class(op.name);
    if (kind == WorkClass::kView || kind == WorkClass::kMemory) return true;
    return work(op, from, to, symbols_).flops <= kCheapFlopsPerByte * static_cast<double>(made);
  }

  // Returns the operand that should be sent instead of the result, or kNone.
  ValueId viewed(const Op& op) const {
    if (work_class(op.name) != WorkClass::kView || op.results.size() != 1) return kNone;
    const std::vector<ValueId> from = operands(op);
    if (from.size() != 1 || from[0] == kNone || everywhere(from[0])) return kNone;
    if (producer(result_.root[at(from[0])]) == kNone) return kNone;  // received, or a buffer
    return bytes(op.results[0]) >= bytes(from[0]) ? from[0] : kNone;
  }

  void find_last_readers() {
    for (OpId id : forward_)
      for (ValueId value : operands(op(id))) {
        if (value == kNone || everywhere(value)) continue;
        const ValueId root = result_.root[at(value)];
        if (producer(root) != kNone) result_.last_read[at(root)] = result_.position[at(id)];
      }
  }

  // Finds the positions that read each parameter in the forward phase, ascending.
  void find_uses() {
    for (OpId id : result_.sequence)
      for (ValueId value : operands(op(id)))
        if (value != kNone && everywhere(value))
          for (ValueId parameter : parameters_[at(value)]) {
            std::vector<int32_t>& uses = result_.uses[parameter];
            if (uses.empty() || uses.back() != result_.position[at(id)])
              uses.push_back(result_.position[at(id)]);
          }
  }

  // Returns the highest use up to `limit`, if any.
  std::optional<int32_t> use_below(ValueId parameter, int32_t limit) const {
    const auto found = result_.uses.find(parameter);
    if (found == result_.uses.end()) return std::nullopt;
    const auto above = std::upper_bound(found->second.begin(), found->second.end(), limit);
    if (above == found->second.begin()) return std::nullopt;
    return *std::prev(above);
  }

  void place_backward(OpId id) {
    if (!backward(id) || result_.presence[at(id)] != Presence::kOnce) return;
    auto highest = static_cast<int32_t>(result_.sequence.size()) - 1;
    for (ValueId value : operands(op(id))) {
      if (value == kNone || everywhere(value)) continue;
      const ValueId root = result_.root[at(value)];
      if (producer(root) == kNone) continue;
      highest = std::min(highest, std::max(position_of(value), result_.last_read[at(root)]));
    }
    for (ValueId value : operands(op(id))) {
      if (value == kNone || !everywhere(value)) continue;
      for (ValueId parameter : parameters_[at(value)])
        highest = use_below(parameter, highest).value_or(highest);
    }
    result_.position[at(id)] = highest;
  }

  // Marks additions that sum the gradients of several readers, and linear ops after them.
  void split_sums() {
    for (const Output& output : graph_.outputs) {
      if (output.kind != OutputKind::kGradient) continue;
      for (ValueId parameter : outputs_[at(output.value)]) {
        const auto uses = result_.uses.find(parameter);
        if (uses == result_.uses.end() || uses->second.size() < 2) continue;
        std::vector<ValueId> open{output.value};
        while (!open.empty()) {
          const ValueId value = open.back();
          open.pop_back();
          if (!reads_are_partial(value)) continue;
          tied_[value] = parameter;
          for (ValueId term : terms_of(producer(value))) open.push_back(term);
        }
      }
    }
  }

  bool reads_are_partial(ValueId value) const {
    const size_t wanted = outputs_[at(value)].size();
    if (wanted > 1 || (wanted == 1 && !readers_[at(value)].empty())) return false;
    return std::all_of(readers_[at(value)].begin(), readers_[at(value)].end(), [&](OpId id) {
      return result_.presence[at(id)] == Presence::kPartial;
    });
  }

  // Returns the terms if the op is a sum of terms without rows, or linear in its only one.
  std::vector<ValueId> terms_of(OpId id) {
    if (id == kNone || !backward(id) || op(id).results.size() != 1) return {};
    std::vector<ValueId> terms;
    std::vector<int> places;
    const std::vector<ValueId> from = operands(op(id));
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] == kNone) return {};
      if (everywhere(from[i])) continue;
      if (has_rows(type_of(graph_, from[i])) || producer(from[i]) == kNone ||
          !backward(producer(from[i])))
        return {};
      terms.push_back(from[i]);
      places.push_back(static_cast<int>(i));
    }
    if (terms.empty() || !is_linear(id, places)) return {};
    // A single term is the result of the sum.
    for (ValueId term : terms)
      if (terms.size() > 1 && type_of(graph_, term) != type_of(graph_, op(id).results[0]))
        return {};
    result_.presence[at(id)] = Presence::kPartial;
    result_.position[at(id)] = kNone;
    result_.root[at(op(id).results[0])] = op(id).results[0];
    result_.terms[id] = terms;
    return terms;
  }

  bool is_linear(OpId id, const std::vector<int>& places) const {
    if (places.size() > 1) {
      if (op(id).name == "medley.add_n.default") return true;
      const auto* factor = std::get_if<Size>(&op(id).arguments.back());
      return op(id).name == "aten.add.Tensor" && factor && *factor == Size(1);
    }
    const std::optional<Instance> instance = instantiate(graph_, op(id));
    return instance && std::find(instance->linear.begin(), instance->linear.end(), places) !=
                           instance->linear.end();
  }

  // Returns the highest position that reads the value; kNone if only outputs do.
  int32_t highest_reader(ValueId value) const {
    int32_t highest = kNone;
    for (OpId id : readers_[at(value)]) {
      const bool view = result_.presence[at(id)] != Presence::kOnce;
      highest =
          std::max(highest, view ? highest_reader(op(id).results[0]) : result_.position[at(id)]);
    }
    return highest;
  }

  // Returns the parameter with this gradient or term of it, or kNone.
  ValueId gradient_of(ValueId value) const {
    if (const auto found = tied_.find(value); found != tied_.end()) return found->second;
    const std::vector<ValueId>& wanted = outputs_[at(value)];
    if (wanted.size() == 1 && readers_[at(value)].empty()) return wanted[0];
    for (OpId id : readers_[at(value)]) {
      const bool view = result_.presence[at(id)] == Presence::kWhereRead;
      if (!view || readers_[at(value)].size() > 1 || !wanted.empty()) return kNone;
      return gradient_of(op(id).results[0]);
    }
    return kNone;
  }

  void move_down(OpId id) {
    if (!backward(id) || result_.presence[at(id)] != Presence::kOnce) return;
    const int32_t highest = result_.position[at(id)];
    bool only = true;  // no rows, only parameter gradients depend on it
    int32_t wanted = kNone;
    for (ValueId value : op(id).results) {
      if (value == kNone) continue;
      only = only && !has_rows(type_of(graph_, value));
      if (const ValueId parameter = gradient_of(value); parameter != kNone) {
        wanted = std::max(wanted, use_below(parameter, highest).value_or(highest));
        continue;
      }
      only = only && outputs_[at(value)].empty() && reads_are_parameter_only(value);
      wanted = std::max(wanted, outputs_[at(value)].empty() ? highest_reader(value) : highest);
    }
    parameter_only_[at(id)] = only;
    int32_t lowest = 0;  // forward values come from below
    int64_t read = 0, made = 0, moving = 0;
    bool free = true;  // for parameters, which are in some stages only
    for (ValueId value : operands(op(id))) {
      if (value == kNone) continue;
      if (everywhere(value)) {
        for (ValueId parameter : parameters_[at(value)])
          free = free && use_below(parameter, wanted) == wanted;
        continue;
      }
      const OpId maker = producer(result_.root[at(value)]);
      if (maker == kNone) continue;
      if (!backward(maker)) {
        lowest = std::max(lowest, result_.position[at(maker)]);
        continue;
      }
      ++moving;
      read += bytes(value);
    }
    for (ValueId value : op(id).results)
      if (value != kNone) made = std::max(made, bytes(value));
    if (wanted == kNone || !free || !(only || (moving == 1 && made >= read))) return;
    result_.position[at(id)] = std::min(highest, std::max(wanted, lowest));
  }

  bool reads_are_parameter_only(ValueId value) const {
    return std::all_of(readers_[at(value)].begin(), readers_[at(value)].end(), [&](OpId id) {
      if (result_.presence[at(id)] == Presence::kPartial) return true;
      if (result_.presence[at(id)] == Presence::kOnce) return bool{parameter_only_[at(id)]};
      return outputs_[at(op(id).results[0])].empty() ? reads_are_parameter_only(op(id).results[0])
                                                     : true;
    });
  }

  const Graph& graph_;
  const std::vector<int64_t> symbols_;
  Positions result_;
  std::vector<Depends> depends_;                  // [value]
  std::vector<std::vector<OpId>> readers_;        // [value]
  std::vector<std::vector<ValueId>> parameters_;  // [value] sources of its recomputation
  std::vector<std::vector<ValueId>> outputs_;     // [value] parameters with this gradient
  std::vector<ValueId> found_;
  std::vector<OpId> forward_;         // computed once
  std::map<ValueId, ValueId> tied_;   // values in sums of gradients -> parameter
  std::vector<bool> parameter_only_;  // [op]
  std::vector<bool> summed_;          // [op]
};

}  // namespace

Positions place(const Graph& graph) { return Placer(graph).run(); }

}  // namespace medley
