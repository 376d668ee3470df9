#pragma once

// The real speed of an emulated device: an efficiency per class and size of op and device type that
// no data sheet shows. Planning learns it only by measuring.
//
//   factor   /|  /|
//     1.2   / | / |  /|   ___       small ops do not fill the device; work is done in whole waves,
//     1.0  /  |/  | / |  |          the last of which may be nearly empty; from some size on
//     0.8         |/  '--'          another kernel is the one that is used
//         +------------------------ work
//
// Unlike the interpolation of times (cost/efficiency.h) it has steps, possibly far from all
// measured sizes.

#include <cstdint>
#include <string_view>

#include "medley/cluster/cluster.h"
#include "medley/cost/op_time.h"

namespace medley {

struct HiddenTruth {
  uint64_t seed = 0;
  double spread = 0;  // largest relative deviation from analytic times; in [0, 1)

  // Returns the ratio of an op's time to its analytic time, in [1 - spread, 1 + spread]. For an
  // amount of work w, with a level l and levels k of kernels in [-1, 1], a half-way amount h and a
  // wave v, all drawn for the device type, class and dtype:
  //
  //   1 + spread (0.2 l + 0.2 k(w) + 0.3 (h - w) / (h + w)
  //               + 0.3 (2 min(1, ceil(w / v) v / w - 1) - 1))
  //
  // k(w) is one level for every 1.4 powers of two.
  double factor(std::string_view kind, const OpWork& work) const;
  Nanoseconds op_time(const DeviceKind& kind, const OpWork& work) const;
};

}  // namespace medley
