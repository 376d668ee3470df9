#pragma once

// Times of ops that were not measured, from those of the same class that were: by how much measured
// ops took longer than the roofline says, as a function of their work. Knows nothing of shapes.
//
//   measured / analytic
//     1.3 |        o
//         |      .' '.     o             one knot per power of two of work, linear in the work in
//     1.0 |    o'     'o..' '--o....     between, constant outside; the knots are the least squares
//         |....'                         of the samples
//         +---|---|---|---|---|-----  work
//
// Two levels: a curve for the class and dtype, and for each op by name how far its samples are from
// that curve (softmax is slower than addition), so that an op that was measured at few sizes
// follows its class in between.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "medley/profile/sized_op.h"

namespace medley {

// What the time of an op grows with: flops or bytes, whichever are more.
double amount(const Work& work);

struct RatioSample {
  double amount = 0;  // > 0
  double ratio = 1;   // > 0
};

class RatioCurve {
 public:
  // Minimises the sum of the squares of relative errors, plus `smoothness` times that of the
  // differences of neighbouring knots, relative to the ratios there. Requires: samples; smoothness
  // > 0.
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
  // Of one class and dtype on one kind of device. Requires: samples.
  explicit Efficiencies(const std::vector<Sample>& samples);
  // Returns what the analytic time is to be multiplied by; never beyond what was measured.
  double ratio(std::string_view op, double amount) const;
  // Of all that was measured: ratio() is never below it.
  double least() const { return least_; }

 private:
  RatioCurve of_class_;
  std::map<std::string, RatioCurve, std::less<>> of_op_;  // times of_class_
  double least_, most_;
};

}  // namespace medley
