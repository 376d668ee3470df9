#include "medley/ops/known_instances.h"

#include <algorithm>
#include <functional>

#include "medley/base/at.h"

namespace medley {

std::shared_ptr<const Instance> KnownInstances::of(const Op& op) {
  const auto make = [&]() -> std::shared_ptr<const Instance> {
    std::optional<Instance> instance = instantiate(graph_, op);
    if (!instance) return nullptr;
    return std::make_shared<const Instance>(std::move(*instance));
  };
  const Rule* rule = find_rule(op.name);
  if (!rule) return nullptr;
  if (rule->reads_producers) return make();
  std::vector<Known>& known = known_[hash(op)];
  for (const Known& each : known)
    if (are_equal(*each.op, op)) return each.instance;
  known.push_back({&op, make()});
  return known.back().instance;
}

// Compares ops except for their values, and for properties that rules ignore.
bool KnownInstances::are_equal(const Op& a, const Op& b) const {
  const auto values = [&](ValueId one, ValueId two) { return are_equal(one, two); };
  const auto arguments = [&](const Argument& one, const Argument& two) {
    if (one.index() != two.index()) return false;
    if (const auto* value = std::get_if<ValueArgument>(&one))
      return are_equal(value->value, std::get<ValueArgument>(two).value);
    if (const auto* list = std::get_if<std::vector<ValueArgument>>(&one))
      return std::ranges::equal(*list,
                                std::get<std::vector<ValueArgument>>(two),
                                values,
                                &ValueArgument::value,
                                &ValueArgument::value);
    return one == two;
  };
  return a.name == b.name && std::ranges::equal(a.results, b.results, values) &&
         std::ranges::equal(a.arguments, b.arguments, arguments);
}

bool KnownInstances::are_equal(ValueId a, ValueId b) const {
  if (a == kNone || b == kNone) return a == b;
  return graph_.values[at(a)].type == graph_.values[at(b)].type;
}

// Hashes the name and the shapes of the results, which rarely collide.
uint64_t KnownInstances::hash(const Op& op) const {
  uint64_t hash = std::hash<std::string_view>{}(op.name);
  for (const ValueId value : op.results) {
    if (value == kNone) continue;
    for (const Size& size : graph_.values[at(value)].type.shape)
      hash = hash * 0x100000001b3 + static_cast<uint64_t>(size.coefficient) + size.symbols.size();
  }
  return hash;
}

}  // namespace medley
