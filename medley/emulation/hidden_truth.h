#pragma once

// How an emulated device really behaves: an efficiency per class and size of op, and kind of
// device, that no data sheet tells. Planning learns it only by measuring.

#include <cstdint>
#include <string_view>

#include "medley/cluster/cluster.h"
#include "medley/cost/op_time.h"

namespace medley {

struct HiddenTruth {
  uint64_t seed = 0;
  double spread =
      0;  // times differ by up to this share from the analytic ones, either way; in [0, 1)

  // Returns by how much longer an op takes than the analytic model says, in [1 - spread, 1 +
  // spread]. A random number per power of two of the work, linear in between, so that ops of nearly
  // equal size take nearly equal times.
  double factor(std::string_view kind, const OpWork& work) const;
  Nanoseconds op_time(const DeviceKind& kind, const OpWork& work) const;
};

}  // namespace medley
