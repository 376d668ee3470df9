#pragma once

// How an emulated device really behaves: an efficiency per class and size of op, and kind of
// device, that no data sheet tells. Planning learns it only by measuring.
//
//   factor   /|  /|
//     1.2   / | / |  /|   ___       small ops do not fill the device; work is done in whole waves,
//     1.0  /  |/  | / |  |          the last of which may be nearly empty; from some size on
//     0.8         |/  '--'          another kernel is the one that is used
//         +------------------------ work
//
// So it is not of the form with which times are interpolated (cost/efficiency.h): it has steps,
// which no measured size need be near to.

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
  // spread]. For an amount of work w, with a level l and levels k of kernels in [-1, 1], a half-way
  // amount h and a wave v, all drawn for the kind, class and dtype:
  //
  //   1 + spread (0.2 l + 0.2 k(w) + 0.3 (h - w) / (h + w)
  //               + 0.3 (2 min(1, ceil(w / v) v / w - 1) - 1))
  //
  // where k(w) is one level for every 1.4 powers of two.
  double factor(std::string_view kind, const OpWork& work) const;
  Nanoseconds op_time(const DeviceKind& kind, const OpWork& work) const;
};

}  // namespace medley
