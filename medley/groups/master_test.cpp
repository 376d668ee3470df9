#include "medley/groups/master.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "medley/base/at.h"

namespace medley {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;

// Two device types, and a column better than both; the prices explain it.
TEST(Master, TakesWhatDoesMostAndSaysWhatDevicesAreWorth) {
  const MasterSolution solution = solve_master({4, 8}, {{{1, 0}, 10}, {{0, 1}, 3}, {{1, 1}, 15}});
  EXPECT_NEAR(solution.rows, 72, 1e-6);
  EXPECT_THAT(solution.prices, ElementsAre(DoubleNear(12, 1e-6), DoubleNear(3, 1e-6)));
  EXPECT_THAT(solution.shares,
              ElementsAre(DoubleNear(0, 1e-9), DoubleNear(4, 1e-6), DoubleNear(4, 1e-6)));
}

TEST(Master, WithoutColumnsNothingIsWorthAnything) {
  EXPECT_EQ(solve_master({3}, {}).rows, 0);
  EXPECT_THAT(solve_master({3, 2}, {{{1, 1}, 0}}).prices, Each(0));
}

// The solution is feasible, and at its prices no column is worth more than its devices: by duality
// it is optimal.
TEST(Master, NoOtherChoiceDoesMore) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
    };
    std::vector<int> devices;
    for (int pool = draw(1, 5); pool > 0; --pool) devices.push_back(draw(1, 300));
    std::vector<MasterColumn> columns(at(draw(1, 60)));
    for (MasterColumn& column : columns) {
      for (size_t k = 0; k < devices.size(); ++k) column.devices.push_back(draw(0, 12));
      column.devices[0] = std::max(1, column.devices[0]);
      column.rows = draw(0, 1 << draw(0, 20));
    }
    const MasterSolution solution = solve_master(devices, columns);
    const double close = 1e-6 * (1 + solution.rows);
    double rows = 0, worth = 0;
    for (size_t k = 0; k < devices.size(); ++k) {
      double used = 0;
      for (size_t c = 0; c < columns.size(); ++c)
        used += columns[c].devices[k] * solution.shares[c];
      EXPECT_LE(used, devices[k] * (1 + 1e-6)) << seed;
      EXPECT_GE(solution.prices[k], 0) << seed;
      worth += solution.prices[k] * devices[k];
    }
    for (size_t c = 0; c < columns.size(); ++c) {
      double paid = 0;
      for (size_t k = 0; k < devices.size(); ++k)
        paid += solution.prices[k] * columns[c].devices[k];
      EXPECT_GE(paid, columns[c].rows - close) << seed;
      EXPECT_GE(solution.shares[c], 0) << seed;
      rows += columns[c].rows * solution.shares[c];
    }
    EXPECT_NEAR(rows, solution.rows, close) << seed;
    EXPECT_NEAR(worth, solution.rows, close) << seed;
  }
}

}  // namespace
}  // namespace medley
