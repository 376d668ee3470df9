#include "medley/program/overwritten.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/ops/overwrite.h"

namespace medley {

std::array<ValueId, 2> overwritable(const LoweredStage& stage, const Op& op) {
  std::array<ValueId, 2> operands = overwritable(stage.graph, op);
  for (ValueId& value : operands)
    if (value != kNone && stage.lifetimes[at(value)] != Lifetime::kMicrobatch) value = kNone;
  return operands;
}

ValueId overwritten(const std::array<ValueId, 2>& operands, const std::vector<ValueId>& dies) {
  const auto dying = [&](ValueId value) {
    return value != kNone && std::ranges::find(dies, value) != dies.end();
  };
  const auto found = std::ranges::find_if(operands, dying);
  return found == operands.end() ? kNone : *found;
}

}  // namespace medley
