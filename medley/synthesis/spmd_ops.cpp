#include "medley/synthesis/spmd_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace medley {
namespace {

// Appends numbers as bytes: signatures are only compared.
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
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    FactoredShape shape{bytes_per_element(graph_.values[v].type.dtype), {}};
    for (const auto& dim : factors_.values[v])
      for (ExtentId extent : dim) shape.sizes.push_back(extent_size(extent));
    shape_of_.push_back(mesh_.id(shape));
  }
}

int64_t OpCatalogue::extent_size(ExtentId extent) const {
  return evaluate(factors_.extent_sizes[at(extent)], symbols_);
}

const OpChoices& OpCatalogue::of(OpId op) {
  const OpChoices*& choices = of_op_[at(op)];
  if (choices) return *choices;
  const auto [found, added] = known_.try_emplace(signature(op));
  if (added) found->second = enumerate(op);
  choices = &found->second;
  return *choices;
}

std::string OpCatalogue::signature(OpId id) const {
  const Op& op = graph_.ops[at(id)];
  Key key;
  key.add(op.name);
  const auto add_value = [&](ValueId value) {
    if (value == kNone) return key.add(-1);
    key.add(static_cast<int64_t>(graph_.values[at(value)].type.dtype));
    key.add(static_cast<int64_t>(factors_.values[at(value)].size()));
    for (const auto& dim : factors_.values[at(value)]) {
      key.add(static_cast<int64_t>(dim.size()));
      for (ExtentId extent : dim) {
        const Size& size = factors_.extent_sizes[at(extent)];
        key.add(size.coefficient);
        key.add(static_cast<int64_t>(size.symbols.size()));
      }
    }
  };
  for (ValueId value : operands(op)) add_value(value);
  for (ValueId value : op.results) add_value(value);
  for (const Argument& argument : op.arguments) add_argument(key, argument);
  const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
  key.add(instance ? 1 : 0);
  if (!instance) return key.take();
  for (size_t l = 0; l < instance->labels.size(); ++l) {
    const Label& label = instance->labels[l];
    key.add((label.locked ? 1 : 0) + (label.select ? 2 : 0) + (label.composite ? 4 : 0));
    const auto& extents = factors_.labels[at(id)][l];
    key.add(static_cast<int64_t>(extents.size()));
    for (ExtentId extent : extents) {
      const Size& size = factors_.extent_sizes[at(extent)];
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
  const Op& op = graph_.ops[at(id)];
  OpChoices all;
  all.operands.resize(operands(op).size());
  all.results.resize(op.results.size());
  const std::vector<OnAxis> first = enumerate(id, 0);
  if (mesh_.num_axes() == 1) {
    for (const OnAxis& each : first) add(id, {&each}, all);
    return all;
  }
  const std::vector<OnAxis> second = enumerate(id, 1);
  for (const OnAxis& outer : first)
    for (const OnAxis& inner : second)
      if (go_together(id, outer, inner)) add(id, {&outer, &inner}, all);
  return all;
}

std::vector<OpCatalogue::OnAxis> OpCatalogue::enumerate(OpId id, int axis) const {
  const Op& op = graph_.ops[at(id)];
  std::vector<OnAxis> all{on_axis(id, Choice{}, false)};
  const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
  if (!instance) return all;
  for (size_t label = 0; label < instance->labels.size(); ++label) {
    const auto& extents = factors_.labels[at(id)][label];
    for (size_t factor = 0; factor < extents.size(); ++factor) {
      const Size& size = factors_.extent_sizes[at(extents[factor])];
      const bool batch = size == Size::of(0);
      if (!size.is_constant() && !batch) continue;
      const Cut cut{static_cast<int>(label), static_cast<int>(factor)};
      for (int part = 0; part < static_cast<int>(mesh_.parts().size()); ++part) {
        if (!mesh_.may_cut(axis, part, batch)) continue;
        const Choice choice{ChoiceKind::kCut, cut, part, -1};
        const bool composite = instance->labels[label].composite && has_expansion(op.name);
        if (composite || is_legal(factors_, id, choice))
          all.push_back(on_axis(id, choice, composite));
      }
    }
  }
  for (size_t group = 0; group < instance->linear.size(); ++group)
    all.push_back(on_axis(id, Choice{ChoiceKind::kLinear, {}, -1, static_cast<int>(group)}, false));
  return all;
}

OpCatalogue::OnAxis OpCatalogue::on_axis(OpId id, const Choice& choice, bool composite) const {
  OnAxis made{{choice, composite},
              operand_placements(graph_, factors_, id, choice),
              result_placements(graph_, factors_, id, choice)};
  for (AxisPlacement& placement : made.results)
    if (composite && placement.holding != Holding::kSharded) placement = replicated();
  return made;
}

// Both axes may cut one factor only without an alternative: the rows of the batch, and values of
// one factor, such as a bias. Other values have a second factor, which is no worse to gather;
// cutting twice would double the choices.
bool OpCatalogue::may_cut_twice(OpId id, const Cut& cut) const {
  const Op& op = graph_.ops[at(id)];
  const ExtentId extent = extent_of(factors_, id, cut);
  if (factors_.extent_sizes[at(extent)] == Size::of(0)) return true;
  const auto has_one = [&](ValueId value) {
    return value == kNone || flat_factors(factors_, value).size() <= 1;
  };
  const std::vector<ValueId> values = operands(op);
  return std::all_of(values.begin(), values.end(), has_one) &&
         std::all_of(op.results.begin(), op.results.end(), has_one);
}

bool OpCatalogue::go_together(OpId id, const OnAxis& first, const OnAxis& second) const {
  const Choice &a = first.choice.choice, &b = second.choice.choice;
  if (a.kind == ChoiceKind::kCut && b.kind == ChoiceKind::kCut && a.cut.label == b.cut.label) {
    if (first.choice.composite) return false;
    if (a.cut.factor == b.cut.factor && !may_cut_twice(id, a.cut)) return false;
  }
  // Sums of different operands, and of products of sums, are useless to a next op.
  if (a.kind == ChoiceKind::kLinear && b.kind == ChoiceKind::kLinear && a.group != b.group)
    return false;
  // A maximum of sums is not a sum of maxima.
  for (size_t r = 0; r < first.results.size(); ++r) {
    const auto either = [&](Holding one, Holding other) {
      return first.results[r].holding == one && second.results[r].holding == other;
    };
    if (either(Holding::kPartialSum, Holding::kPartialMax) ||
        either(Holding::kPartialMax, Holding::kPartialSum))
      return false;
  }
  return true;
}

void OpCatalogue::add(OpId id, const std::vector<const OnAxis*>& axes, OpChoices& all) {
  OnMesh way;
  way.operands.resize(all.operands.size());
  way.results.resize(all.results.size());
  for (const OnAxis* axis : axes) {
    way.choice.push_back(axis->choice);
    for (size_t i = 0; i < way.operands.size(); ++i) way.operands[i].push_back(axis->operands[i]);
    for (size_t r = 0; r < way.results.size(); ++r) way.results[r].push_back(axis->results[r]);
  }
  all.costs.push_back(price(id, way));
  for (size_t i = 0; i < way.operands.size(); ++i)
    all.operands[i].push_back(mesh_.id(way.operands[i]));
  for (size_t r = 0; r < way.results.size(); ++r)
    all.results[r].push_back(mesh_.id(way.results[r]));
  all.choices.push_back(std::move(way.choice));
}

SpmdMesh::MeshCut OpCatalogue::cut_of(OpId id, const MeshChoice& choice) const {
  SpmdMesh::MeshCut cuts;
  for (size_t axis = 0; axis < choice.size(); ++axis) {
    const Choice& on = choice[axis].choice;
    SpmdMesh::FactorCut& cut = cuts.emplace_back();
    if (on.kind != ChoiceKind::kCut) continue;
    const int64_t size = extent_size(extent_of(factors_, id, on.cut));
    cut = {on.part, size, axis > 0 && choice[0].choice.cut == on.cut};
  }
  return cuts;
}

Ticks OpCatalogue::price(OpId id, const OnMesh& way) {
  double total = 0;
  for (const SpmdMesh::Identical& devices : mesh_.identical(cut_of(id, way.choice))) {
    const double time =
        static_cast<double>(local_time(id, way, devices[0]).value * kTicksPerNanosecond);
    if (pricing_.weights.empty()) {
      total = std::max(total, time);
    } else {
      for (int device : devices) total += pricing_.weights[at(device)] * time;
    }
  }
  for (size_t axis = 0; axis < way.choice.size(); ++axis)
    if (way.choice[axis].composite) total = 2 * total + price_statistics(id, way, axis);
  return static_cast<Ticks>(std::llround(total));
}

// Returns the cost of expanding a composite label: one more read of its operand and two all-reduces
// of a statistic.
double OpCatalogue::price_statistics(OpId id, const OnMesh& way, size_t axis) {
  FactoredShape statistic = shape(operands(graph_.ops[at(id)])[0]);
  Placement have = way.operands[0];
  if (have[axis].holding == Holding::kSharded) statistic.sizes[at(have[axis].position)] = 1;
  have[axis] = partial_sum();
  Placement want = have;
  want[axis] = replicated();
  return 2 * static_cast<double>(mesh_.redistribution(statistic, have, want));
}

TensorType OpCatalogue::local_type(ValueId value, const Placement& placement, int device) {
  TensorType type{graph_.values[at(value)].type.dtype, {}};
  int position = 0;
  for (const auto& dim : factors_.values[at(value)]) {
    int64_t size = 1;
    for (ExtentId extent : dim)
      size *= mesh_.length(extent_size(extent), position++, placement, device);
    type.shape.emplace_back(size);
  }
  return type;
}

// Times a graph of the op in its local form, with the sizes of this device.
Nanoseconds OpCatalogue::local_time(OpId id, const OnMesh& way, int device) {
  const Op& op = graph_.ops[at(id)];
  if (work_class(op.name) == WorkClass::kView) return {};
  const std::vector<ValueId> values = operands(op);
  std::vector<TensorType> operand_types, result_types;
  Graph local;
  local.symbols = graph_.symbols;
  std::vector<ValueId> ids;
  for (size_t i = 0; i < values.size(); ++i) {
    operand_types.push_back(values[i] == kNone ? TensorType{}
                                               : local_type(values[i], way.operands[i], device));
    ids.push_back(values[i] == kNone ? kNone : static_cast<ValueId>(local.values.size()));
    if (values[i] != kNone) local.values.push_back({operand_types.back(), kNone, 0});
  }
  for (size_t r = 0; r < op.results.size(); ++r)
    result_types.push_back(
        op.results[r] == kNone ? TensorType{} : local_type(op.results[r], way.results[r], device));
  Op form = localize(id, way, device, operand_types, result_types);
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
                         const OnMesh& way,
                         int device,
                         const std::vector<TensorType>& operand_types,
                         const std::vector<TensorType>& result_types) {
  Op local = graph_.ops[at(id)];
  const Rule* rule = find_rule(local.name);
  const std::shared_ptr<const Instance>& instance = factors_.instances[at(id)];
  if (!rule || !rule->localize || !instance) return local;
  LocalForm form;
  form.global = &graph_;
  form.op = &graph_.ops[at(id)];
  form.instance = &*instance;
  form.operands = operand_types;
  form.results = result_types;
  form.cuts = local_cuts(id, way.choice, device);
  if (!form.op->results.empty() && form.op->results[0] != kNone) {
    // Offsets do not change the time.
    for (const auto& dim : factors_.values[at(form.op->results[0])])
      for (ExtentId extent : dim) {
        form.factor_sizes.emplace_back(extent_size(extent));
        form.factor_fulls.emplace_back(extent_size(extent));
        form.factor_offsets.emplace_back(0);
      }
  }
  rule->localize(local, form);
  return local;
}

// Both axes' cuts of one factor are merged.
std::vector<LocalCut> OpCatalogue::local_cuts(OpId id, const MeshChoice& choice, int device) {
  std::vector<LocalCut> made;
  int64_t piece = 0;  // on the axis before
  const SpmdMesh::MeshCut cuts = cut_of(id, choice);
  for (size_t axis = 0; axis < cuts.size(); ++axis) {
    if (cuts[axis].part < 0) continue;
    const Cut& cut = choice[axis].choice.cut;
    const std::vector<int64_t>& lengths = mesh_.lengths(
        static_cast<int>(axis), cuts[axis].part, cuts[axis].within ? piece : cuts[axis].size);
    const auto place = lengths.begin() + mesh_.place(device, static_cast<int>(axis));
    const int64_t offset = std::accumulate(lengths.begin(), place, int64_t{0});
    piece = *place;
    if (cuts[axis].within) {
      made.back().length = Size(piece);
      continue;
    }
    const auto& extents = factors_.labels[at(id)][at(cut.label)];
    int64_t behind = 1;
    for (size_t k = at(cut.factor) + 1; k < extents.size(); ++k) behind *= extent_size(extents[k]);
    made.push_back({cut, Size(piece), Size(offset), Size(cuts[axis].size), Size(behind)});
  }
  return made;
}

}  // namespace medley
