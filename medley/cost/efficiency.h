#pragma once

// Estimates times of unmeasured ops from measured ones of their class, by the ratio of measured
// time to roofline as a function of work. Knows nothing of shapes.
//
//   measured / analytic
//     1.3 |        o
//         |      .' '.     o             one knot per power of two of work, linear in the work in
//     1.0 |    o'     'o..' '--o....     between, constant outside; the knots are the least squares
//         |....'                         of the samples
//         +---|---|---|---|---|-----  work
//
// Two levels: a curve for the class and dtype, and one per op name relative to it (softmax is
// slower than addition). An op measured at few sizes follows its class in between.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "medley/profile/sized_op.h"

namespace medley {

// Returns the amount that an op's time grows with: the larger of flops and bytes.
double amount(const Work& work);

struct RatioSample {
  double amount = 0;  // > 0
  double ratio = 1;   // > 0
};

class RatioCurve {
 public:
  // Minimises the squares of relative errors, plus `smoothness` times the squared differences of
  // neighbouring knots, relative to the ratios there. Requires: samples; smoothness > 0.
  RatioCurve(const std::vector<RatioSample>& samples, double smoothness);
  double at(double amount) const;

 private:
  int first_ = 0;              // power of two of the first knot
  std::vector<double> knots_;  // ratio at 2^(first_ + i)
};

class Efficiencies {
 public:
  struct Sample {
    std::string op;  // "aten.mm.default"
    RatioSample sample;
  };
  // Samples are of one class and dtype on one device type. Requires: samples.
  explicit Efficiencies(const std::vector<Sample>& samples);
  // Returns the factor on the analytic time, within the measured range.
  double ratio(std::string_view op, double amount) const;
  // Returns the least measured ratio, a lower bound of ratio().
  double least() const { return least_; }

 private:
  RatioCurve of_class_;
  std::map<std::string, RatioCurve, std::less<>> of_op_;  // times of_class_
  double least_, most_;
};

}  // namespace medley
