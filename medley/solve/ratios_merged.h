#pragma once

// A ratio problem with equal items merged. Devices of equal coefficients are a class, equal
// segments have a weight, and exchanges are segments with the same rows for all classes. Some best
// division gives a class equal shares, since the average of two best divisions is also best. Inside
// of best_ratios() only.

#include <vector>

#include "medley/solve/ratios.h"

namespace medley {

struct MergedSegment {
  bool exchange = false;  // its rows belong to no device
  double count = 0;       // merged segments
  double floor = 0;       // least seconds of each, for any division
  // Seconds of all together; the unit of `coefficients`, so proportional segments are equal too.
  double seconds = 0;
  std::vector<double> coefficients;  // [class] constants less the floor; then [part][class] slopes
};

struct MergedRatios {
  int parts = 0;
  std::vector<int> class_of;            // [device]
  std::vector<double> members;          // [class] number of devices
  std::vector<MergedSegment> segments;  // with variable time
  double floor = 0;                     // least seconds of all segments and exchanges
  std::vector<double> room;             // [class] bytes left for shares; empty: no limit
  std::vector<double> bytes_per_share;  // [part][class]

  size_t num_classes() const { return members.size(); }
};

// [part][class] Share of each device of the class.
using ClassShares = std::vector<double>;

// Requires: sizes fit, numbers are finite and not negative.
MergedRatios merge_equal(const RatioProblem& problem);

// Returns seconds above the floor. Sets `binding`, if given, to each segment's slowest class.
double seconds_above_floor(const MergedRatios& problem,
                           const ClassShares& shares,
                           std::vector<int>* binding = nullptr);

// Result of a solver.
struct ClassRatios {
  ClassShares shares;
  std::vector<double> weights;  // [class] of all its devices, in arbitrary scale
};

}  // namespace medley
