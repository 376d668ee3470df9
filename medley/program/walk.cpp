#include "medley/program/walk.h"

namespace medley {

std::vector<Item> items_of(std::span<const Step> steps) {
  std::vector<Item> items;
  for_each_item(steps,
                [&](const Item& item, const std::vector<ValueId>&) { items.push_back(item); });
  return items;
}

std::vector<ValueId> uses(const LoweredStage& stage, const Item& item) {
  if (item.kind == Item::Kind::kOp) return operands(stage.graph.ops[at(item.index)]);
  if (item.kind == Item::Kind::kPost) return stage.communications[at(item.index)].inputs;
  return {};
}

const std::vector<ValueId>& definitions(const LoweredStage& stage, const Item& item) {
  static const std::vector<ValueId> kNothing;
  if (item.kind == Item::Kind::kOp) return stage.graph.ops[at(item.index)].results;
  if (item.kind == Item::Kind::kWait) return stage.communications[at(item.index)].outputs;
  return kNothing;
}

}  // namespace medley
