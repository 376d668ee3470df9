#pragma once

// A ratio problem in which what is equal stands once: devices of equal coefficients are a class,
// equal segments are one with a weight, and exchanges are segments whose rows are the same for all
// classes. Some best division gives the devices of a class equal shares, because the average of two
// best divisions is one too. Inside of best_ratios() only.

#include <vector>

#include "medley/solve/ratios.h"

namespace medley {

struct MergedSegment {
  bool exchange = false;  // its rows are of no device in particular
  double count = 0;       // how many segments it stands for
  double floor = 0;       // seconds that each takes however it is divided
  // Of all together, in units of `seconds` so that segments that differ by a factor are equal too:
  double seconds = 0;
  std::vector<double> coefficients;  // [class] constants less the floor; then [part][class] slopes
};

struct MergedRatios {
  int parts = 0;
  std::vector<int> class_of;            // [device]
  std::vector<double> members;          // [class] number of devices
  std::vector<MergedSegment> segments;  // those that can take longer than their floor
  double floor = 0;                     // seconds of all segments and exchanges at least
  std::vector<double> room;             // [class] bytes left for shares; empty: not limited
  std::vector<double> bytes_per_share;  // [part][class]

  size_t num_classes() const { return members.size(); }
};

// [part][class], of each device of the class.
using ClassShares = std::vector<double>;

// Requires: sizes fit, numbers are finite and not negative.
MergedRatios merge_equal(const RatioProblem& problem);

// Seconds above the floor. `binding`, where given, gets of every segment the class that is last.
double seconds_above_floor(const MergedRatios& problem,
                           const ClassShares& shares,
                           std::vector<int>* binding = nullptr);

// What a solver returns.
struct ClassRatios {
  ClassShares shares;
  std::vector<double> weights;  // [class] of all its devices together, in no particular scale
};

}  // namespace medley
