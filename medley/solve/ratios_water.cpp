#include "medley/solve/ratios_water.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace medley {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Water {
 public:
  explicit Water(const MergedRatios& problem)
      : members_(problem.members), state_(members_.size(), kGrows) {
    const size_t classes = members_.size();
    for (const MergedSegment& segment : problem.segments) {
      if (segment.exchange) {
        exchange_ = segment.seconds * segment.coefficients[classes];
        continue;
      }
      weight_ = segment.seconds;
      constant_.assign(segment.coefficients.begin(),
                       segment.coefficients.begin() + static_cast<std::ptrdiff_t>(classes));
      slope_.assign(segment.coefficients.begin() + static_cast<std::ptrdiff_t>(classes),
                    segment.coefficients.end());
    }
    exchange_ /= weight_;
    most_.assign(classes, kNever);
    for (size_t c = 0; c < problem.room.size(); ++c)
      if (problem.bytes_per_share[c] > 0)
        most_[c] = std::max(0.0, problem.room[c]) / problem.bytes_per_share[c];
  }

  ClassRatios fill() {
    grow_to_one();
    lower_level();
    double sum = 0;
    for (size_t c = 0; c < share_.size(); ++c) sum += members_[c] * share_[c];
    for (double& share : share_) share /= sum;
    return {share_, weights()};
  }

 private:
  enum State {
    kGrows,    // limited by the time
    kFull,     // limited by its room
    kLevelled  // limited by the level
  };

  // Without a level, time grows until all is assigned.
  void grow_to_one() {
    for (size_t c = 0; c < members_.size(); ++c) {
      share_.push_back(-constant_[c] / slope_[c]);
      if (share_[c] >= most_[c]) become_full(c);
    }
    double sum = std::inner_product(share_.begin(), share_.end(), members_.begin(), 0.0);
    if (sum > 1) {
      level_to_one();
      return;
    }
    while (sum < 1) {
      double step = (1 - sum) / rate();
      size_t next = members_.size();
      for (size_t c = 0; c < members_.size(); ++c) {
        if (state_[c] != kGrows || (most_[c] - share_[c]) * slope_[c] >= step) continue;
        step = (most_[c] - share_[c]) * slope_[c];
        next = c;
      }
      if (!std::isfinite(step)) break;  // full up to rounding of the room
      sum = next == members_.size() ? 1 : sum + step * rate();
      advance(step);
      if (next != members_.size()) become_full(next);
    }
    level_ = *std::max_element(share_.begin(), share_.end());
    for (size_t c = 0; c < members_.size(); ++c)
      if (share_[c] == level_) state_[c] = kLevelled;
    meets_.assign(members_.size(), false);
    for (size_t c = 0; c < members_.size(); ++c) meets_[c] = state_[c] == kLevelled;
  }

  // At the shortest time more than all fits: finds the lowest level for exactly all.
  void level_to_one() {
    std::vector<size_t> order(members_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(
        order.begin(), order.end(), [&](size_t a, size_t b) { return share_[a] < share_[b]; });
    double left = 1, levelled = std::accumulate(members_.begin(), members_.end(), 0.0);
    for (size_t c : order) {
      level_ = left / levelled;
      if (share_[c] >= level_) break;
      left -= members_[c] * share_[c];
      levelled -= members_[c];
    }
    for (size_t c = 0; c < members_.size(); ++c) {
      if (share_[c] < level_) continue;
      state_[c] = kLevelled;
      share_[c] = level_;
    }
    meets_.assign(members_.size(), false);
  }

  // Moves to the next kink while a longer time saves more at the exchange than it costs.
  void lower_level() {
    for (;;) {
      const double falls = rate() / levelled();
      if (exchange_ * falls <= 1) return;
      double step = kNever;
      size_t next = 0;
      for (size_t c = 0; c < members_.size(); ++c) {
        double until = kNever;
        if (state_[c] == kGrows)
          until = std::min((most_[c] - share_[c]) * slope_[c],
                           (level_ - share_[c]) / (1 / slope_[c] + falls));
        if (state_[c] == kFull) until = (level_ - share_[c]) / falls;
        if (until >= step) continue;
        step = std::max(0.0, until);
        next = c;
      }
      advance(step);
      level_ -= step * falls;
      for (size_t c = 0; c < members_.size(); ++c)
        if (state_[c] == kLevelled) share_[c] = level_;
      meets_.assign(members_.size(), false);
      const bool was_full = state_[next] == kFull;
      if (!was_full && most_[next] - share_[next] < level_ - share_[next]) {
        become_full(next);
        continue;
      }
      state_[next] = kLevelled;
      meets_[next] = !was_full;
    }
  }

  void become_full(size_t c) {
    share_[c] = most_[c];
    state_[c] = kFull;
  }

  void advance(double step) {
    time_ += step;
    for (size_t c = 0; c < members_.size(); ++c)
      if (state_[c] == kGrows) share_[c] += step / slope_[c];
  }

  // Returns the growth of all shares per second.
  double rate() const {
    double sum = 0;
    for (size_t c = 0; c < members_.size(); ++c)
      if (state_[c] == kGrows) sum += members_[c] / slope_[c];
    return sum;
  }

  double levelled() const {
    double sum = 0;
    for (size_t c = 0; c < members_.size(); ++c)
      if (state_[c] == kLevelled) sum += members_[c];
    return sum;
  }

  // Returns the duals. With `price` that of a share, a growing device has price / slope, one at the
  // level (price - its part of the exchange) / slope. The latter is zero unless it meets the time
  // too. They sum to 1; the rest at the shortest time goes to the devices whose constants determine
  // it.
  std::vector<double> weights() const {
    std::vector<double> weights(members_.size(), 0);
    double meeting = 0, meeting_rate = 0;
    for (size_t c = 0; c < members_.size(); ++c) {
      if (!meets_[c]) continue;
      meeting += members_[c];
      meeting_rate += members_[c] / slope_[c];
    }
    const double above = levelled() - meeting;
    double price = time_ > 0 || meeting > 0 ? 1 / (rate() + meeting_rate) : exchange_ / above;
    if (meeting > 0)
      price = (1 + exchange_ * meeting_rate / meeting) /
              (rate() + meeting_rate + above * meeting_rate / meeting);
    double left = 1;
    for (size_t c = 0; c < members_.size(); ++c) {
      if (state_[c] == kGrows) weights[c] = price * members_[c] / slope_[c];
      if (meets_[c])
        weights[c] =
            std::max(0.0, price - (exchange_ - above * price) / meeting) * members_[c] / slope_[c];
      left -= weights[c];
    }
    for (size_t c = 0; c < members_.size() && time_ == 0; ++c) {
      if (constant_[c] != 0) continue;
      weights[c] += std::max(0.0, left);
      break;
    }
    return weights;
  }

  std::vector<double> members_;
  std::vector<State> state_;
  std::vector<double> constant_, slope_, most_, share_;
  std::vector<bool> meets_;  // both time and level
  double weight_ = 1, exchange_ = 0, time_ = 0, level_ = 0;
};

}  // namespace

bool is_water(const MergedRatios& problem) {
  if (problem.parts != 1) return false;
  int segments = 0, exchanges = 0;
  for (const MergedSegment& segment : problem.segments) {
    ++(segment.exchange ? exchanges : segments);
    for (size_t c = problem.num_classes(); c < segment.coefficients.size(); ++c)
      if (segment.coefficients[c] == 0) return false;
  }
  return segments == 1 && exchanges <= 1;
}

ClassRatios fill_water(const MergedRatios& problem) { return Water(problem).fill(); }

}  // namespace medley
