#include "medley/emulation/memory_meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/base/units.h"
#include "medley/ops/rule.h"

namespace medley {

MemoryMeter::Held MemoryMeter::take(int64_t bytes, const std::string& what) {
  if (bytes > capacity_ - live_)
    throw Error(Blame::kCaller,
                fmt::format("{}: out of memory: {}: needs {}, available are {} of {}",
                            device_,
                            what,
                            to_string(Bytes{bytes}),
                            to_string(Bytes{capacity_ - live_}),
                            to_string(Bytes{capacity_})));
  auto held = std::make_shared<Storage>(*this, bytes);
  peak_ = std::max(peak_, live_);
  return held;
}

ValueId storage_operand(const Op& op, size_t result) {
  const std::vector<ValueId> values = operands(op);
  if (values.empty()) return kNone;
  if (work_class(op.name) == WorkClass::kView || op.name == "medley.accumulate.default")
    return values[0];
  // param, grad, moments and master -> the new param, moments and master.
  if (op.name == "medley.adamw.default" || op.name == "medley.sgd.default")
    return values.at(result == 0 ? 0 : result + 1);
  return kNone;
}

}  // namespace medley
