#include "medley/solve/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace medley {
namespace {

using ::testing::ElementsAre;

double slowest(const std::vector<int64_t>& rows,
               const std::vector<double>& fixed,
               const std::vector<double>& per_row) {
  double worst = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] > 0) worst = std::max(worst, fixed[i] + static_cast<double>(rows[i]) * per_row[i]);
  return worst;
}

double best_of_all(int64_t total,
                   const std::vector<double>& fixed,
                   const std::vector<double>& per_row,
                   std::vector<int64_t>& rows,
                   size_t at) {
  if (at + 1 == rows.size()) {
    rows[at] = total;
    return slowest(rows, fixed, per_row);
  }
  double best = INFINITY;
  for (rows[at] = 0; rows[at] <= total; ++rows[at])
    best = std::min(best, best_of_all(total - rows[at], fixed, per_row, rows, at + 1));
  return best;
}

TEST(Balance, RowsBySpeed) {
  EXPECT_THAT(balance(12, {0, 0, 0, 0}, {1, 1, 2, 2}), ElementsAre(4, 4, 2, 2));
  EXPECT_THAT(balance(10, {0, 0, 0}, {1, 1, 1}), ElementsAre(4, 3, 3));
  EXPECT_THAT(balance(0, {1, 1}, {1, 1}), ElementsAre(0, 0));
}

// A device's fixed time reduces its share: 3 + 3 * 1 = 0 + 6 * 1.
TEST(Balance, FixedTimeIsCounted) { EXPECT_THAT(balance(9, {3, 0}, {1, 1}), ElementsAre(3, 6)); }

TEST(Balance, ASlowDeviceMayGetNothing) {
  EXPECT_THAT(balance(3, {0, 0}, {1, 100}), ElementsAre(3, 0));
}

TEST(Balance, NoDivisionIsBetter) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> time(0.1, 3);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> fixed(1 + random() % 4), per_row(fixed.size());
    for (double& each : fixed) each = random() % 3 == 0 ? 0 : time(random);
    for (double& each : per_row) each = time(random);
    const auto total = static_cast<int64_t>(random() % 12);
    const auto rows = balance(total, fixed, per_row);
    ASSERT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), total);
    std::vector<int64_t> scratch(fixed.size());
    EXPECT_NEAR(
        slowest(rows, fixed, per_row), best_of_all(total, fixed, per_row, scratch, 0), 1e-9);
  }
}

}  // namespace
}  // namespace medley
