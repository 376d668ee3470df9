#include "medley/program/commit.h"

#include <algorithm>
#include <set>

#include "medley/base/at.h"
#include "medley/ops/update_ops.h"

namespace medley {
namespace {

constexpr std::string_view kClip = "medley.clip_scale.default";

bool is_op(const LoweredStage& stage, const Item& item, std::string_view name) {
  return item.kind == Item::Kind::kOp && stage.graph.ops[at(item.index)].name == name;
}

bool updates(const LoweredStage& stage, const Item& item) {
  return item.kind == Item::Kind::kOp && find_update_op(stage.graph.ops[at(item.index)].name);
}

// Returns true also if this device only receives them, without reading any update result.
bool sends_new_values(const LoweredStage& stage, const Item& item) {
  if (item.kind != Item::Kind::kPost) return false;
  const auto& sync = stage.communications[at(item.index)].sync;
  return sync && sync->of == GradientSync::Of::kNewValues;
}

bool any_in(const std::vector<ValueId>& values, const std::set<ValueId>& known) {
  return std::ranges::any_of(values, [&](ValueId value) { return known.contains(value); });
}

// Returns the items between the sum over this device's gradients and the norm.
std::vector<bool> norm_items(const LoweredStage& stage, const std::vector<Item>& order) {
  std::vector<bool> found(order.size());
  std::set<ValueId> wanted;
  std::set<int> awaited;  // communications
  for (size_t i = order.size(); i-- > 0;) {
    const Item& item = order[i];
    if (item.kind == Item::Kind::kPost) {
      found[i] = awaited.contains(item.index);
    } else if (any_in(definitions(stage, item), wanted)) {
      found[i] = item.kind == Item::Kind::kWait || (!is_op(stage, item, "medley.add_n.default") &&
                                                    !is_op(stage, item, "aten.full.default"));
      if (found[i] && item.kind == Item::Kind::kWait) awaited.insert(item.index);
    } else {
      found[i] = is_op(stage, item, kClip);
    }
    if (!found[i]) continue;
    for (ValueId value : uses(stage, item)) wanted.insert(value);
  }
  return found;
}

// Returns 0 before the norm, 1 for the norm and its dependents, 2 for the update and its
// dependents.
std::vector<int> phases(const LoweredStage& stage, const std::vector<Item>& order) {
  const std::vector<bool> norm = norm_items(stage, order);
  std::vector<int> result(order.size());
  std::set<ValueId> of_norm, of_update;
  std::set<int> posted_late;  // communications
  for (size_t i = 0; i < order.size(); ++i) {
    const Item& item = order[i];
    const std::vector<ValueId> read = uses(stage, item);
    if (updates(stage, item) || sends_new_values(stage, item) || any_in(read, of_update) ||
        (item.kind == Item::Kind::kWait && posted_late.contains(item.index)))
      result[i] = 2;
    else if (norm[i] || any_in(read, of_norm))
      result[i] = 1;
    if (item.kind == Item::Kind::kPost && result[i] == 2) posted_late.insert(item.index);
    std::set<ValueId>& made = result[i] == 2 ? of_update : of_norm;
    if (result[i] > 0)
      for (ValueId value : definitions(stage, item)) made.insert(value);
  }
  return result;
}

}  // namespace

int commit_first(const LoweredStage& stage, std::vector<Item>& order) {
  const std::vector<int> phase = phases(stage, order);
  std::vector<Item> sorted;
  int commit = kNone;
  for (int wanted = 0; wanted <= 2; ++wanted)
    for (size_t i = 0; i < order.size(); ++i) {
      if (phase[i] != wanted) continue;
      sorted.push_back(order[i]);
      if (wanted == 1 && order[i].kind == Item::Kind::kWait) commit = order[i].index;
    }
  order = std::move(sorted);
  return commit;
}

bool spreads_after_commit(const LoweredStage& stage) {
  if (stage.commit == kNone) return false;
  const std::vector<Item> items = items_of(find_function(stage, FunctionKind::kUpdate).steps);
  const auto commit = std::ranges::find(items, Item{Item::Kind::kWait, stage.commit});
  return commit != items.end() && std::any_of(commit + 1, items.end(), [](const Item& item) {
           return item.kind != Item::Kind::kOp;
         });
}

}  // namespace medley
