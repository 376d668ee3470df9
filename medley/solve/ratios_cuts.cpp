#include "medley/solve/ratios_cuts.h"

#include <ClpSimplex.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// Clp's tolerances are absolute, so values are scaled well above them.
constexpr double kScale = 1e3;
constexpr double kTolerance = 1e-9;
constexpr double kGap = 1e-9 * kScale;
// Weight of balance in ties of the objective, as a fraction of the objective.
constexpr double kBalance = 1e-6;
constexpr size_t kMaxGroups = 12;
constexpr int kMaxRounds = 20'000;

ClpSimplex quiet_clp(size_t rows, size_t columns) {
  ClpSimplex clp;
  clp.setLogLevel(0);
  clp.setPerturbation(100);  // off
  clp.scaling(0);            // already scaled
  clp.setPrimalTolerance(kTolerance);
  clp.setDualTolerance(kTolerance);
  clp.resize(static_cast<int>(rows), static_cast<int>(columns));
  return clp;
}

// Clp satisfies bounds within its tolerance; shares satisfy them exactly.
void make_exact(const MergedRatios& problem, ClassShares& shares) {
  const size_t classes = problem.num_classes();
  for (size_t at = 0; at < shares.size(); at += classes) {
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) {
      shares[at + c] = std::max(0.0, shares[at + c]);
      sum += problem.members[c] * shares[at + c];
    }
    for (size_t c = 0; c < classes; ++c) shares[at + c] /= sum;
  }
}

// Returns the unit of bytes.
double room_unit(const MergedRatios& problem) {
  double unit = 1;
  for (double each : problem.room) unit = std::max(unit, std::abs(each));
  return unit;
}

// Returns shares in proportion to the classes' speeds, part by part, independent of other parts.
ClassShares balanced(const MergedRatios& problem, const std::vector<double>& slopes) {
  const size_t classes = problem.num_classes();
  ClassShares shares(slopes.size());
  for (size_t at = 0; at < shares.size(); at += classes) {
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) sum += problem.members[c] / slopes[at + c];
    for (size_t c = 0; c < classes; ++c) shares[at + c] = 1 / (slopes[at + c] * sum);
  }
  return shares;
}

// Returns [part][class] positive seconds of all segments, so a class with nearly free work does not
// get everything.
std::vector<double> total_slopes(const MergedRatios& problem) {
  const size_t classes = problem.num_classes();
  std::vector<double> total(at(problem.parts) * classes, 0);
  for (const MergedSegment& segment : problem.segments)
    for (size_t at = 0; at < total.size(); ++at)
      total[at] += segment.seconds * segment.coefficients[classes + at];
  for (auto row = total.begin(); row != total.end(); row += static_cast<std::ptrdiff_t>(classes)) {
    const auto end = row + static_cast<std::ptrdiff_t>(classes);
    const double largest = *std::max_element(row, end);
    for (auto each = row; each != end; ++each)
      *each = largest > 0 ? std::max(*each, 1e-3 * largest) : 1;
  }
  return total;
}

// Returns the problem in the time unit in which `start` takes kScale, with a segment per part that
// is shortest for a balanced part.
MergedRatios scaled(const MergedRatios& problem,
                    const std::vector<double>& slopes,
                    const ClassShares& start) {
  MergedRatios scaled = problem;
  const size_t classes = problem.num_classes();
  const double seconds = seconds_above_floor(problem, start);
  const double factor = seconds > 0 ? kScale / seconds : 1;
  for (MergedSegment& segment : scaled.segments) segment.seconds *= factor;
  for (size_t at = 0; at < start.size(); at += classes) {
    MergedSegment balance;
    balance.seconds = 1;
    balance.exchange = true;
    balance.coefficients.assign(classes + slopes.size(), 0);
    for (size_t c = 0; c < classes; ++c)
      balance.coefficients[classes + at + c] =
          kBalance * kScale * slopes[at + c] / (slopes[at] * start[at]);
    scaled.segments.push_back(std::move(balance));
  }
  return scaled;
}

// The dual program, in which a row of the primal is a column. It has few rows:
//
//   maximise  sum over cuts of constant * weight + sum over parts of price - sum of room * rent
//   weights of the cuts of a group <= 1
//   members * price of the part <= sum over cuts of slope * weight + bytes per share * rent
//
// The last line applies to every share: its dual is the share, in units of `start`.
class Cuts {
 public:
  Cuts(const MergedRatios& problem, const ClassShares& start)
      : problem_(problem),
        unit_(start),
        groups_(std::min(kMaxGroups, problem.segments.size())),
        clp_(quiet_clp(start.size() + groups_, 0)) {
    clp_.setOptimizationDirection(-1);
    for (size_t row = 0; row < start.size() + groups_; ++row)
      clp_.setRowBounds(static_cast<int>(row), -COIN_DBL_MAX, row < start.size() ? 0 : 1);
    add_prices();
    if (!problem.room.empty()) add_rents(missing_room(problem).bytes);
    first_cut_ = at(clp_.numberColumns());
  }

  // Returns a lower bound and its shares.
  std::pair<double, ClassShares> solve() {
    // If times differ by many orders of magnitude, the previous round's basis may be too inexact to
    // resume from.
    if (clp_.primal() != 0) {
      clp_.allSlackBasis(true);
      clp_.scaling(3);
      MEDLEY_CHECK_EQ(clp_.primal(), 0);
    }
    MEDLEY_CHECK(clp_.isProvenOptimal());
    ClassShares shares(unit_);
    for (size_t at = 0; at < shares.size(); ++at) shares[at] *= clp_.dualRowSolution()[at];
    make_exact(problem_, shares);
    return {clp_.objectiveValue(), shares};
  }

  // Adds the rows of the slowest classes at `shares`; returns their time.
  double cut(const ClassShares& shares) {
    const size_t classes = problem_.num_classes();
    std::vector<int> binding;
    const double seconds = seconds_above_floor(problem_, shares, &binding);
    for (size_t g = 0; g < groups_; ++g) {
      std::vector<double> slope(shares.size(), 0), last(classes, 0);
      double constant = 0;
      for (size_t s = g; s < binding.size(); s += groups_) {
        const MergedSegment& segment = problem_.segments[s];
        const auto c = at(binding[s]);
        constant += segment.seconds * segment.coefficients[c];
        for (size_t at = c; at < shares.size(); at += classes)
          slope[at] += segment.seconds * segment.coefficients[classes + at];
        if (!segment.exchange) last[c] += segment.count;
      }
      slope.resize(slope.size() + groups_, 0);
      for (size_t at = 0; at < shares.size(); ++at) slope[at] *= -unit_[at];
      slope[shares.size() + g] = 1;
      add_column(slope, constant, 0);
      last_.push_back(std::move(last));
    }
    return seconds;
  }

  // Returns [class] the number of segments in which it is slowest, by the weights of the cuts.
  std::vector<double> weights() const {
    std::vector<double> weights(problem_.num_classes(), 0);
    for (size_t cut = 0; cut < last_.size(); ++cut)
      for (size_t c = 0; c < weights.size(); ++c)
        weights[c] += std::max(0.0, clp_.primalColumnSolution()[first_cut_ + cut]) * last_[cut][c];
    return weights;
  }

 private:
  void add_prices() {
    const size_t classes = problem_.num_classes();
    for (size_t first = 0; first < unit_.size(); first += classes) {
      std::vector<double> column(unit_.size(), 0);
      for (size_t c = 0; c < classes; ++c)
        column[first + c] = problem_.members[c] * unit_[first + c];
      add_column(column, 1, -COIN_DBL_MAX);
    }
  }

  void add_rents(double missing_bytes) {
    const size_t classes = problem_.num_classes();
    const double unit = room_unit(problem_);
    for (size_t c = 0; c < classes; ++c) {
      std::vector<double> column(unit_.size(), 0);
      for (size_t at = c; at < column.size(); at += classes)
        column[at] = -problem_.bytes_per_share[at] * unit_[at] / unit;
      add_column(column, -(problem_.room[c] + missing_bytes) / unit, 0);
    }
  }

  void add_column(const std::vector<double>& numbers, double objective, double least) {
    std::vector<int> rows;
    std::vector<double> dense;
    for (size_t row = 0; row < numbers.size(); ++row) {
      if (numbers[row] == 0) continue;
      rows.push_back(static_cast<int>(row));
      dense.push_back(numbers[row]);
    }
    clp_.addColumn(
        static_cast<int>(rows.size()), rows.data(), dense.data(), least, COIN_DBL_MAX, objective);
  }

  const MergedRatios& problem_;
  const ClassShares unit_;
  const size_t groups_;
  ClpSimplex clp_;
  size_t first_cut_ = 0;
  std::vector<std::vector<double>> last_;  // [cut][class] segments in which it is slowest
};

}  // namespace

MissingRoom missing_room(const MergedRatios& problem) {
  if (problem.room.empty()) return {};
  if (problem.parts == 0)
    return {std::max(0.0, -*std::min_element(problem.room.begin(), problem.room.end())), {}};
  const size_t classes = problem.num_classes();
  const auto missing = static_cast<int>(problem.bytes_per_share.size());
  ClpSimplex clp = quiet_clp(0, problem.bytes_per_share.size() + 1);
  clp.setObjectiveCoefficient(missing, 1);
  for (int column = 0; column <= missing; ++column) clp.setColumnBounds(column, 0, COIN_DBL_MAX);
  for (size_t first = 0; first < problem.bytes_per_share.size(); first += classes) {
    std::vector<int> columns;
    for (size_t c = 0; c < classes; ++c) columns.push_back(static_cast<int>(first + c));
    clp.addRow(static_cast<int>(classes), columns.data(), problem.members.data(), 1, 1);
  }
  const double unit = room_unit(problem);
  for (size_t c = 0; c < classes; ++c) {
    std::vector<int> columns{missing};
    std::vector<double> numbers{-1};
    for (size_t at = c; at < problem.bytes_per_share.size(); at += classes) {
      columns.push_back(static_cast<int>(at));
      numbers.push_back(problem.bytes_per_share[at] / unit);
    }
    clp.addRow(static_cast<int>(columns.size()),
               columns.data(),
               numbers.data(),
               -COIN_DBL_MAX,
               problem.room[c] / unit);
  }
  MEDLEY_CHECK_EQ(clp.dual(), 0);
  MEDLEY_CHECK(clp.isProvenOptimal());
  MissingRoom found{.bytes = clp.objectiveValue() * unit, .shares = {}};
  found.shares.assign(clp.primalColumnSolution(), clp.primalColumnSolution() + missing);
  make_exact(problem, found.shares);
  return found;
}

ClassRatios cut_planes(const MergedRatios& problem) {
  if (problem.parts == 0) return {};
  const std::vector<double> slopes = total_slopes(problem);
  const ClassShares start = balanced(problem, slopes);
  const MergedRatios tighter = scaled(problem, slopes, start);
  Cuts cuts(tighter, start);
  cuts.cut(start);
  auto [bound, best] = cuts.solve();
  double seconds = cuts.cut(best);
  for (int round = 0; seconds - bound > kGap; ++round) {
    MEDLEY_CHECK(round < kMaxRounds);
    ClassShares at;
    std::tie(bound, at) = cuts.solve();
    // Halfway to the best known shares the cuts are deeper than at the far end of the program.
    ClassShares middle = at;
    for (size_t i = 0; i < at.size(); ++i) middle[i] = (at[i] + best[i]) / 2;
    for (const ClassShares& shares : {at, middle}) {
      const double taken = cuts.cut(shares);
      if (taken >= seconds) continue;
      seconds = taken;
      best = shares;
    }
  }
  cuts.solve();
  return {best, cuts.weights()};
}

}  // namespace medley
