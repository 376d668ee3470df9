#include "medley/emulation/memory_meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/base/units.h"

namespace medley {

MemoryMeter::Held MemoryMeter::take(int64_t bytes, const std::string& what, bool computed) {
  if (bytes > capacity_ - live_)
    throw Error(Blame::kCaller,
                fmt::format("{}: out of memory: {}: needs {}, available are {} of {}",
                            device_,
                            what,
                            to_string(Bytes{bytes}),
                            to_string(Bytes{capacity_ - live_}),
                            to_string(Bytes{capacity_})));
  auto held = std::make_shared<Storage>(*this, bytes);
  held->computed = computed;
  peak_ = std::max(peak_, live_);
  return held;
}

}  // namespace medley
