#include "medley/stages/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

class Partitioner {
 public:
  Partitioner(const Graph& graph,
              const Positions& positions,
              std::vector<int32_t> cuts,
              const std::vector<std::string>& names)
      : graph_(graph), positions_(positions), names_(names), stages_(cuts.size() + 1) {
    result_.cuts = std::move(cuts);
    present_.assign(stages_, std::vector<bool>(graph.ops.size(), false));
    held_.assign(stages_, std::vector<bool>(graph.values.size(), false));
  }

  Partition run() {
    check_cuts();
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto id = static_cast<OpId>(i);
      if (positions_.presence[i] == Presence::kOnce) add(id, stage_of(id));
      if (positions_.presence[i] == Presence::kPartial) add_partial(id);
    }
    for (const Output& output : graph_.outputs)
      if (output.kind != OutputKind::kBuffer) add_output(output);
    add_new_values();
    collect();
    return std::move(result_);
  }

 private:
  void check_cuts() const {
    int32_t before = 0;
    for (int32_t cut : result_.cuts) {
      MEDLEY_CHECK(cut > before);
      before = cut;
    }
    MEDLEY_CHECK(before < static_cast<int32_t>(positions_.sequence.size()));
  }

  int stage_of(OpId id) const {
    const std::vector<int32_t>& cuts = result_.cuts;
    return static_cast<int>(
        std::upper_bound(cuts.begin(), cuts.end(), positions_.position[at(id)]) - cuts.begin());
  }

  void add(OpId id, int stage) {
    if (present_[at(stage)][at(id)]) return;
    present_[at(stage)][at(id)] = true;
    const auto terms = positions_.terms.find(id);
    for (ValueId value : operands(graph_.ops[at(id)])) {
      if (value == kNone) continue;
      const bool term =
          terms != positions_.terms.end() &&
          std::find(terms->second.begin(), terms->second.end(), value) != terms->second.end();
      if (!term) need(value, stage);
    }
  }

  // Makes the value available in the stage.
  void need(ValueId value, int stage) {
    held_[at(stage)][at(value)] = true;
    const OpId producer = graph_.values[at(value)].producer;
    if (producer == kNone || present_[at(stage)][at(producer)]) return;
    if (positions_.presence[at(producer)] == Presence::kWhereRead) return add(producer, stage);
    MEDLEY_CHECK(positions_.presence[at(producer)] == Presence::kOnce);
    const int home = stage_of(producer);
    if (home != stage) transfers_[value].insert(stage);
  }

  // Returns the stages with a part of the value.
  std::set<int> stages_of(ValueId value) const {
    const OpId producer = graph_.values[at(value)].producer;
    std::set<int> stages;
    if (positions_.presence[at(producer)] == Presence::kOnce) return {stage_of(producer)};
    for (int s = 0; s < static_cast<int>(stages_); ++s)
      if (present_[at(s)][at(producer)]) stages.insert(s);
    if (stages.empty()) {  // a view
      MEDLEY_CHECK(positions_.presence[at(producer)] == Presence::kWhereRead);
      return {stage_of(graph_.values[at(positions_.root[at(value)])].producer)};
    }
    return stages;
  }

  void add_partial(OpId id) {
    for (ValueId term : positions_.terms.at(id))
      for (int stage : stages_of(term)) {
        need_term(term, stage);
        add(id, stage);
      }
  }

  void need_term(ValueId term, int stage) {
    const OpId producer = graph_.values[at(term)].producer;
    if (positions_.presence[at(producer)] == Presence::kWhereRead) add(producer, stage);
  }

  void add_output(const Output& output) {
    const OpId producer = graph_.values[at(output.value)].producer;
    if (producer == kNone) return;
    switch (positions_.presence[at(producer)]) {
      case Presence::kOnce:
      case Presence::kPartial:
        return;
      case Presence::kWhereRead:
        break;
    }
    // A view of a stage's value is there; one computed from parameters alone is at its last reader.
    const OpId maker = graph_.values[at(positions_.root[at(output.value)])].producer;
    int stage = static_cast<int>(stages_) - 1;
    if (positions_.presence[at(maker)] == Presence::kOnce) {
      stage = stage_of(maker);
    } else if (output.kind == OutputKind::kGradient) {
      while (stage > 0 && !held_[at(stage)][at(parameter(output.name))]) --stage;
    }
    need(output.value, stage);
  }

  ValueId parameter(const std::string& name) const {
    for (const Input& input : graph_.inputs)
      if (input.kind == InputKind::kParameter && input.name == name) return input.value;
    MEDLEY_CHECK(!"a parameter");
    return kNone;
  }

  // A stage with a buffer needs its new value, which may be another buffer's old one.
  void add_new_values() {
    std::map<std::string, ValueId> buffers;
    for (const Input& input : graph_.inputs)
      if (input.kind == InputKind::kBuffer) buffers[input.name] = input.value;
    for (bool more = true; std::exchange(more, false);) {
      result_.changing.clear();
      for (const Output& output : graph_.outputs) {
        if (output.kind != OutputKind::kBuffer) continue;
        std::vector<int> holders;
        for (int s = 0; s < static_cast<int>(stages_); ++s)
          if (held_[at(s)][at(buffers.at(output.name))] || makes(s, output.value))
            holders.push_back(s);
        if (holders.empty()) holders.push_back(static_cast<int>(stages_) - 1);
        for (int stage : holders) {
          more = more || !held_[at(stage)][at(output.value)];
          need(output.value, stage);
        }
        result_.changing.push_back({output.name, std::move(holders)});
      }
    }
  }

  bool makes(int stage, ValueId value) const {
    const OpId producer = graph_.values[at(value)].producer;
    return producer != kNone && positions_.presence[at(producer)] == Presence::kOnce &&
           stage_of(producer) == stage;
  }

  void collect() {
    for (const std::vector<bool>& present : present_) {
      result_.ops.emplace_back();
      for (size_t i = 0; i < present.size(); ++i)
        if (present[i]) result_.ops.back().push_back(static_cast<OpId>(i));
    }
    for (const auto& [value, stages] : transfers_) {
      const Value& made = graph_.values[at(value)];
      std::string name = names_[at(made.producer)];
      if (made.result > 0) name += fmt::format(".{}", made.result);
      result_.transfers.push_back(
          {value, std::move(name), stage_of(made.producer), {stages.begin(), stages.end()}});
    }
    const std::map<std::string, ValueId> gradients = gradients_of(graph_);
    for (const Input& input : graph_.inputs) {
      const auto gradient = gradients.find(input.name);
      if (input.kind != InputKind::kParameter || gradient == gradients.end()) continue;
      Tied tied{input.name, {}, {}};
      const OpId made = graph_.values[at(gradient->second)].producer;
      for (size_t s = 0; s < stages_; ++s) {
        const bool partial = made != kNone && present_[s][at(made)];
        if (partial) tied.partial.push_back(static_cast<int>(s));
        if (partial || held_[s][at(input.value)]) tied.holders.push_back(static_cast<int>(s));
      }
      if (tied.holders.size() > 1) result_.tied.push_back(std::move(tied));
    }
  }

  const Graph& graph_;
  const Positions& positions_;
  const std::vector<std::string>& names_;
  const size_t stages_;
  Partition result_;
  std::vector<std::vector<bool>> present_;      // [stage][op]
  std::vector<std::vector<bool>> held_;         // [stage][value] is read there
  std::map<ValueId, std::set<int>> transfers_;  // value -> stages that need it
};

}  // namespace

std::map<std::string, ValueId> gradients_of(const Graph& graph) {
  std::map<std::string, ValueId> gradients;
  for (const Output& output : graph.outputs)
    if (output.kind == OutputKind::kGradient) gradients[output.name] = output.value;
  return gradients;
}

Partition partition(const Graph& graph,
                    const Positions& positions,
                    std::vector<int32_t> cuts,
                    const std::vector<std::string>& names) {
  Partition result = Partitioner(graph, positions, std::move(cuts), names).run();
  verify(graph, positions, result);
  return result;
}

Boundary boundary(const Partition& partition, int k) {
  Boundary both;
  for (const Transfer& transfer : partition.transfers) {
    if (transfer.from <= k && transfer.to.back() > k) both.up.push_back(transfer.value);
    if (transfer.from > k && transfer.to.front() <= k) both.down.push_back(transfer.value);
  }
  return both;
}

std::vector<Size> total_bytes(const Graph& graph, const std::vector<ValueId>& values) {
  std::map<std::vector<Symbol>, int64_t> sums;
  for (ValueId value : values) {
    const TensorType& type = type_of(graph, value);
    Size bytes(bytes_per_element(type.dtype));
    for (const Size& size : type.shape) bytes = bytes * size;
    sums[bytes.symbols] += bytes.coefficient;
  }
  std::vector<Size> total;
  for (const auto& [symbols, coefficient] : sums) {
    total.emplace_back(coefficient);
    total.back().symbols = symbols;
  }
  return total;
}

int64_t evaluate(const std::vector<Size>& sum, const std::vector<int64_t>& symbol_values) {
  int64_t total = 0;
  for (const Size& size : sum) total += evaluate(size, symbol_values);
  return total;
}

}  // namespace medley
