#include "medley/planner/spmd_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "medley/base/error.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

// Appends numbers as bytes: signatures are compared, not read.
class Key {
 public:
  void add(int64_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof(number)); }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    text_ += text;
  }
  template <typename Each>
  void add_all(const std::vector<Each>& items) {
    add(static_cast<int64_t>(items.size()));
    for (const Each& item : items) {
      if constexpr (requires { item.begin(); }) {
        add_all(item);
      } else {
        add(static_cast<int64_t>(item));
      }
    }
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_argument(Key& key, const Argument& argument) {
  key.add(static_cast<int64_t>(argument.index()));
  if (const auto* flag = std::get_if<bool>(&argument)) key.add(*flag ? 1 : 0);
  if (const auto* text = std::get_if<std::string>(&argument)) key.add(*text);
  if (const auto* dtype = std::get_if<DType>(&argument)) key.add(static_cast<int64_t>(*dtype));
}

}  // namespace

OpCatalogue::OpCatalogue(const Graph& graph,
                         const Factors& factors,
                         SpmdMesh mesh,
                         SpmdPricing pricing)
    : graph_(graph),
      factors_(factors),
      mesh_(std::move(mesh)),
      pricing_(std::move(pricing)),
      symbols_(std::max<size_t>(graph.symbols.size(), 1), mesh_.microbatch().rows),
      of_op_(graph.ops.size(), nullptr) {
  note_shapes();
}

void OpCatalogue::note_shapes() {
  std::map<FactoredShape, int> known;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    FactoredShape shape{bytes_per_element(graph_.values[v].type.dtype), {}};
    for (const auto& dim : factors_.values[v])
      for (ExtentId extent : dim) shape.sizes.push_back(extent_size(extent));
    const auto [found, added] = known.try_emplace(shape, static_cast<int>(shapes_.size()));
    if (added) shapes_.push_back(std::move(shape));
    shape_of_.push_back(found->second);
  }
}

int64_t OpCatalogue::extent_size(ExtentId extent) const {
  return evaluate(factors_.extent_sizes[static_cast<size_t>(extent)], symbols_);
}

const OpChoices& OpCatalogue::of(OpId op) {
  const OpChoices*& choices = of_op_[static_cast<size_t>(op)];
  if (choices) return *choices;
  const auto [found, added] = known_.try_emplace(signature(op));
  if (added) found->second = enumerate(op);
  choices = &found->second;
  return *choices;
}

std::string OpCatalogue::signature(OpId id) const {
  const Op& op = graph_.ops[static_cast<size_t>(id)];
  Key key;
  key.add(op.name);
  const auto add_value = [&](ValueId value) {
    if (value == kNone) return key.add(-1);
    key.add(static_cast<int64_t>(graph_.values[static_cast<size_t>(value)].type.dtype));
    key.add(static_cast<int64_t>(factors_.values[static_cast<size_t>(value)].size()));
    for (const auto& dim : factors_.values[static_cast<size_t>(value)]) {
      key.add(static_cast<int64_t>(dim.size()));
      for (ExtentId extent : dim) {
        const Size& size = factors_.extent_sizes[static_cast<size_t>(extent)];
        key.add(size.coefficient);
        key.add(static_cast<int64_t>(size.symbols.size()));
      }
    }
  };
  for (ValueId value : operands(op)) add_value(value);
  for (ValueId value : op.results) add_value(value);
  for (const Argument& argument : op.arguments) add_argument(key, argument);
  const std::optional<Instance>& instance = factors_.instances[static_cast<size_t>(id)];
  key.add(instance ? 1 : 0);
  if (!instance) return key.take();
  for (size_t l = 0; l < instance->labels.size(); ++l) {
    const Label& label = instance->labels[l];
    key.add((label.locked ? 1 : 0) + (label.select ? 2 : 0) + (label.composite ? 4 : 0));
    const auto& extents = factors_.labels[static_cast<size_t>(id)][l];
    key.add(static_cast<int64_t>(extents.size()));
    for (ExtentId extent : extents) {
      const Size& size = factors_.extent_sizes[static_cast<size_t>(extent)];
      key.add(size.coefficient);
      key.add(static_cast<int64_t>(size.symbols.size()));
    }
  }
  key.add_all(instance->operands);
  key.add_all(instance->results);
  key.add_all(instance->linear);
  key.add_all(instance->absent);
  return key.take();
}

OpChoices OpCatalogue::enumerate(OpId id) {
  const Op& op = graph_.ops[static_cast<size_t>(id)];
  OpChoices all;
  all.operands.resize(operands(op).size());
  all.results.resize(op.results.size());
  add(id, Choice{}, false, all);
  const std::optional<Instance>& instance = factors_.instances[static_cast<size_t>(id)];
  if (!instance) return all;
  for (size_t label = 0; label < instance->labels.size(); ++label) {
    const auto& extents = factors_.labels[static_cast<size_t>(id)][label];
    for (size_t factor = 0; factor < extents.size(); ++factor) {
      const Size& size = factors_.extent_sizes[static_cast<size_t>(extents[factor])];
      const bool batch = size == Size::of(0);
      if (!size.is_constant() && !batch) continue;
      const Cut cut{static_cast<int>(label), static_cast<int>(factor)};
      for (int part = 0; part < static_cast<int>(mesh_.parts().size()); ++part) {
        if ((mesh_.parts()[static_cast<size_t>(part)].name == kRows) != batch) continue;
        const Choice choice{ChoiceKind::kCut, cut, part, -1};
        const bool composite = instance->labels[label].composite && has_expansion(op.name);
        if (composite || is_legal(factors_, id, choice)) add(id, choice, composite, all);
      }
    }
  }
  for (size_t group = 0; group < instance->linear.size(); ++group)
    add(id, Choice{ChoiceKind::kLinear, {}, -1, static_cast<int>(group)}, false, all);
  return all;
}

void OpCatalogue::add(OpId id, const Choice& choice, bool composite, OpChoices& all) {
  all.choices.push_back(choice);
  all.composite.push_back(composite);
  all.costs.push_back(price(id, choice, composite));
  const std::vector<AxisState> in = operand_states(graph_, factors_, id, choice);
  const std::vector<AxisState> out = result_states(graph_, factors_, id, choice);
  for (size_t i = 0; i < in.size(); ++i) all.operands[i].push_back(in[i]);
  for (size_t r = 0; r < out.size(); ++r)
    all.results[r].push_back(composite && out[r].holding != Holding::kSharded ? replicated()
                                                                              : out[r]);
}

int64_t OpCatalogue::cut_size(OpId id, const Choice& choice) const {
  return extent_size(factors_.labels[static_cast<size_t>(id)][static_cast<size_t>(choice.cut.label)]
                                    [static_cast<size_t>(choice.cut.factor)]);
}

Ticks OpCatalogue::price(OpId id, const Choice& choice, bool composite) {
  double total = 0;
  for (const SpmdMesh::Alike& devices : choice.kind == ChoiceKind::kCut
                                            ? mesh_.alike(choice.part, cut_size(id, choice))
                                            : mesh_.alike()) {
    const double time =
        static_cast<double>(local_time(id, choice, devices[0]).value * kTicksPerNanosecond);
    if (pricing_.weights.empty()) {
      total = std::max(total, time);
    } else {
      for (int device : devices) total += pricing_.weights[static_cast<size_t>(device)] * time;
    }
  }
  if (composite) {
    // The expansion reads its operand about once more and all-reduces a statistic twice.
    const ValueId value = operands(graph_.ops[static_cast<size_t>(id)])[0];
    FactoredShape statistic = shape(value);
    const std::vector<AxisState> states = operand_states(graph_, factors_, id, choice);
    if (states[0].holding == Holding::kSharded)
      statistic.sizes[static_cast<size_t>(states[0].position)] = 1;
    total *= 2;
    total += 2 * static_cast<double>(mesh_.conversion(statistic, partial_sum(), replicated()));
  }
  return static_cast<Ticks>(std::llround(total));
}

TensorType OpCatalogue::local_type(ValueId value, const AxisState& state, int device) {
  TensorType type{graph_.values[static_cast<size_t>(value)].type.dtype, {}};
  int position = 0;
  for (const auto& dim : factors_.values[static_cast<size_t>(value)]) {
    int64_t size = 1;
    for (ExtentId extent : dim) {
      const int64_t full = extent_size(extent);
      size *= state.holding == Holding::kSharded && state.position == position
                  ? mesh_.lengths(state.part, full)[static_cast<size_t>(device)]
                  : full;
      ++position;
    }
    type.shape.emplace_back(size);
  }
  return type;
}

// A graph of the one op in its local form, with the sizes of this device.
Nanoseconds OpCatalogue::local_time(OpId id, const Choice& choice, int device) {
  const Op& op = graph_.ops[static_cast<size_t>(id)];
  if (work_class(op.name) == WorkClass::kView) return {};
  const std::vector<AxisState> in = operand_states(graph_, factors_, id, choice);
  const std::vector<AxisState> out = result_states(graph_, factors_, id, choice);
  const std::vector<ValueId> values = operands(op);
  std::vector<TensorType> operand_types, result_types;
  Graph local;
  local.symbols = graph_.symbols;
  std::vector<ValueId> ids;
  for (size_t i = 0; i < values.size(); ++i) {
    operand_types.push_back(values[i] == kNone ? TensorType{}
                                               : local_type(values[i], in[i], device));
    ids.push_back(values[i] == kNone ? kNone : static_cast<ValueId>(local.values.size()));
    if (values[i] != kNone) local.values.push_back({operand_types.back(), kNone, 0});
  }
  for (size_t r = 0; r < op.results.size(); ++r)
    result_types.push_back(op.results[r] == kNone ? TensorType{}
                                                  : local_type(op.results[r], out[r], device));
  Op form = localize(id, choice, device, operand_types, result_types);
  size_t next = 0;
  for_each_operand(form, [&](ValueId& value) {
    while (ids[next] == kNone) ++next;
    value = ids[next++];
  });
  for (size_t r = 0; r < form.results.size(); ++r) {
    if (form.results[r] == kNone) continue;
    form.results[r] = static_cast<ValueId>(local.values.size());
    local.values.push_back({result_types[r], 0, static_cast<int32_t>(r)});
  }
  return mesh_.costs().op(mesh_.kind(device), local, form, symbols_).value;
}

Op OpCatalogue::localize(OpId id,
                         const Choice& choice,
                         int device,
                         const std::vector<TensorType>& operand_types,
                         const std::vector<TensorType>& result_types) {
  Op local = graph_.ops[static_cast<size_t>(id)];
  const Rule* rule = find_rule(local.name);
  const std::optional<Instance>& instance = factors_.instances[static_cast<size_t>(id)];
  if (!rule || !rule->localize || !instance) return local;
  LocalForm form;
  form.global = &graph_;
  form.op = &graph_.ops[static_cast<size_t>(id)];
  form.instance = &*instance;
  form.operands = operand_types;
  form.results = result_types;
  if (choice.kind == ChoiceKind::kCut) {
    const auto& extents =
        factors_.labels[static_cast<size_t>(id)][static_cast<size_t>(choice.cut.label)];
    const int64_t full = cut_size(id, choice);
    int64_t inner = 1;
    for (size_t k = static_cast<size_t>(choice.cut.factor) + 1; k < extents.size(); ++k)
      inner *= extent_size(extents[k]);
    const std::vector<int64_t>& lengths = mesh_.lengths(choice.part, full);
    const int64_t offset = std::accumulate(lengths.begin(), lengths.begin() + device, int64_t{0});
    form.cuts = {{choice.cut,
                  Size(lengths[static_cast<size_t>(device)]),
                  Size(offset),
                  Size(full),
                  Size(inner)}};
  }
  if (!form.op->results.empty() && form.op->results[0] != kNone) {
    // Offsets do not change the time.
    for (const auto& dim : factors_.values[static_cast<size_t>(form.op->results[0])])
      for (ExtentId extent : dim) {
        form.factor_sizes.emplace_back(extent_size(extent));
        form.factor_fulls.emplace_back(extent_size(extent));
        form.factor_offsets.emplace_back(0);
      }
  }
  rule->localize(local, form);
  return local;
}

}  // namespace medley
