#include "medley/cost/efficiency.h"

#include <algorithm>
#include <cmath>

#include "medley/base/error.h"

namespace medley {
namespace {

// Smoothness: a class has many samples and few real wiggles; an op has few samples.
constexpr double kClassSmoothness = 1e-3;
constexpr double kOpSmoothness = 0.1;

struct Place {
  int power = 0;     // power of two below the amount
  double above = 0;  // share of the way to the next power, in [0, 1)
};

Place place(double amount) {
  Place result;
  result.above = 2 * std::frexp(std::max(amount, 1.0), &result.power) - 1;
  --result.power;
  return result;
}

std::vector<RatioSample> of_class(const std::vector<Efficiencies::Sample>& samples) {
  std::vector<RatioSample> all;
  for (const Efficiencies::Sample& each : samples) all.push_back(each.sample);
  return all;
}

// Solves the symmetric tridiagonal system with these diagonals in place of the right side (Thomas'
// algorithm). Requires: positive definite.
void solve(std::vector<double>& diagonal,
           const std::vector<double>& beside,
           std::vector<double>& right) {
  for (size_t i = 1; i < diagonal.size(); ++i) {
    const double factor = beside[i - 1] / diagonal[i - 1];
    diagonal[i] -= factor * beside[i - 1];
    right[i] -= factor * right[i - 1];
  }
  for (size_t i = diagonal.size(); i-- > 0;) {
    if (i + 1 < diagonal.size()) right[i] -= beside[i] * right[i + 1];
    right[i] /= diagonal[i];
  }
}

}  // namespace

double amount(const Work& work) { return std::max(work.flops, work.bytes); }

RatioCurve::RatioCurve(const std::vector<RatioSample>& samples, double smoothness) {
  MEDLEY_CHECK(!samples.empty() && smoothness > 0);
  first_ = place(samples[0].amount).power;
  int last = first_;
  for (const RatioSample& each : samples) {
    MEDLEY_CHECK(each.amount > 0 && each.ratio > 0);
    first_ = std::min(first_, place(each.amount).power);
    last = std::max(last, place(each.amount).power + 1);
  }
  const auto size = static_cast<size_t>(last - first_ + 1);
  std::vector<double> diagonal(size), beside(size - 1), right(size);
  double mean_weight = 0;
  for (const RatioSample& each : samples) {
    const Place at = place(each.amount);
    const auto k = static_cast<size_t>(at.power - first_);
    const double weight = 1 / (each.ratio * each.ratio);
    const double low = 1 - at.above, high = at.above;
    mean_weight += weight / static_cast<double>(samples.size());
    diagonal[k] += weight * low * low;
    diagonal[k + 1] += weight * high * high;
    beside[k] += weight * low * high;
    right[k] += weight * low * each.ratio;
    right[k + 1] += weight * high * each.ratio;
  }
  for (size_t k = 0; k + 1 < size; ++k) {
    const double weight = smoothness * mean_weight;
    diagonal[k] += weight;
    diagonal[k + 1] += weight;
    beside[k] -= weight;
  }
  solve(diagonal, beside, right);
  knots_ = std::move(right);
}

double RatioCurve::at(double amount) const {
  const Place where = place(amount);
  if (where.power < first_) return knots_.front();
  const auto k = static_cast<size_t>(where.power - first_);
  if (k + 1 >= knots_.size()) return knots_.back();
  return (1 - where.above) * knots_[k] + where.above * knots_[k + 1];
}

Efficiencies::Efficiencies(const std::vector<Sample>& samples)
    : of_class_(medley::of_class(samples), kClassSmoothness),
      least_(samples.at(0).sample.ratio),
      most_(least_) {
  std::map<std::string, std::vector<RatioSample>> by_op;
  for (const auto& [op, sample] : samples) {
    least_ = std::min(least_, sample.ratio);
    most_ = std::max(most_, sample.ratio);
  }
  for (const auto& [op, sample] : samples) {
    const double class_ratio = std::clamp(of_class_.at(sample.amount), least_, most_);
    by_op[op].push_back({sample.amount, sample.ratio / class_ratio});
  }
  for (const auto& [op, own] : by_op) of_op_.emplace(op, RatioCurve(own, kOpSmoothness));
}

double Efficiencies::ratio(std::string_view op, double amount) const {
  const double class_ratio = std::clamp(of_class_.at(amount), least_, most_);
  const auto own = of_op_.find(op);
  if (own == of_op_.end()) return class_ratio;
  return std::clamp(class_ratio * own->second.at(amount), least_, most_);
}

}  // namespace medley
