#include "medley/checkpoint/held_values.h"

#include <map>

#include "medley/base/at.h"
#include "medley/graph/size.h"
#include "medley/ops/update_ops.h"

namespace medley {
namespace {

constexpr std::string_view kConstant = "constant:";

bool is_kept(const Input& input) {
  if (input.kind == InputKind::kBuffer) return !input.name.starts_with(kConstant);
  return input.kind == InputKind::kParameter || input.kind == InputKind::kState;
}

Layout layout_of(const PlacedValue& placed, const LoweredStage& stage) {
  FactorSizes factors;
  for (const std::vector<Size>& dim : placed.factors)
    for (const Size& factor : dim) factors.push_back(evaluate(factor, stage.tables[0][0]));
  std::vector<Box> boxes;  // [device]
  for (const std::vector<int64_t>& table : stage.tables[0]) {
    Box& box = boxes.emplace_back(whole_box(factors));
    for (const PlacedValue::Cut& cut : placed.cuts) {
      const int64_t begin = evaluate(cut.offset, table);
      box[at(cut.position)] = {begin, begin + evaluate(cut.length, table)};
    }
  }
  return layout_of(std::move(factors), boxes);
}

bool is_assigned(const LoweredStage& stage, ValueId value) {
  for (const Function& function : stage.functions)
    for (const Assign& assign : function.assigns)
      if (assign.to == value) return true;
  return false;
}

std::vector<int64_t> shape_of(const PlacedValue& placed, const std::vector<int64_t>& table) {
  std::vector<int64_t> shape;
  for (const std::vector<Size>& dim : placed.factors) {
    shape.push_back(1);
    for (const Size& factor : dim) shape.back() *= evaluate(factor, table);
  }
  return shape;
}

}  // namespace

std::vector<HeldValue> held_values(const Program& program) {
  std::map<std::pair<std::string, std::string>, HeldValue> found;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const LoweredStage& stage = program.stages[s];
    for (const PlacedValue& placed : stage.inputs) {
      if (!is_kept(placed.input)) continue;
      const std::string kind(to_string(placed.input.kind));
      HeldValue& value = found[{kind, placed.input.name}];
      if (value.name.empty())
        value = {kind,
                 placed.input.name,
                 stage.graph.values[at(placed.input.value)].type.dtype,
                 shape_of(placed, stage.tables[0][0]),
                 {},
                 placed.input.kind != InputKind::kBuffer,
                 placed.input.role};
      value.changes = value.changes || is_assigned(stage, placed.input.value);
      value.stages.push_back({static_cast<int>(s), placed.input.value, layout_of(placed, stage)});
    }
  }
  std::vector<HeldValue> values;
  for (auto& [key, value] : found) values.push_back(std::move(value));
  return values;
}

bool is_loss_scale(std::string_view kind, std::string_view name) {
  return kind == "state" && name == kLossScaleState;
}

}  // namespace medley
