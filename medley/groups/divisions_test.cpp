#include "medley/groups/divisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "medley/base/at.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Column column(Units units, int64_t rows, int64_t fill, int64_t period) {
  return {std::move(units), rows, {fill}, {period}};
}

TEST(Divisions, CountsWholeMicrobatchesOnly) {
  const Column one = column({1}, 4, 90, 10);
  EXPECT_EQ(rows_in(one, {89}, 1), 0);
  EXPECT_EQ(rows_in(one, {90}, 1), 4);
  EXPECT_EQ(rows_in(one, {109}, 1), 8);
  EXPECT_EQ(rows_in(one, {110}, 1), 12);
  Column summing = one;
  summing.after = {{0}, {0}, {5}, {8}};
  EXPECT_EQ(rows_in(summing, {110}, 1), 12);
  EXPECT_EQ(rows_in(summing, {110}, 2), 8);
  EXPECT_EQ(rows_in(summing, {97}, 9), 0);
}

// A fast unit alone, and slow ones in pairs, which have memory for the model only together.
TEST(Divisions, UseAllDevices) {
  DivisionRequest request;
  request.units = {1, 4};
  request.columns = {column({1, 0}, 1, 10, 1), column({0, 2}, 1, 20, 4), column({1, 4}, 1, 50, 1)};
  request.rows = 60;
  const std::vector<Division> found = best_divisions(request);
  ASSERT_THAT(found, SizeIs(testing::Ge(1u)));
  EXPECT_THAT(found[0].columns, ElementsAre(0, 1, 1));
  // 1 + (T - 10) + 2 (1 + (T - 20) / 4)
  EXPECT_EQ(found[0].step.value, 52);
}

TEST(Divisions, AreNoneWhereTwoPipelinesHaveNoRoom) {
  DivisionRequest request;
  request.units = {2, 1};
  request.columns = {column({2, 0}, 1, 10, 1), column({2, 1}, 1, 10, 1)};
  request.rows = 10;
  EXPECT_THAT(best_divisions(request), IsEmpty());
}

DivisionRequest random_request(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  DivisionRequest request;
  for (int pool = draw(1, 3); pool > 0; --pool) request.units.push_back(draw(1, 3));
  for (int c = draw(1, 12); c > 0; --c) {
    Column& one = request.columns.emplace_back();
    for (const int units : request.units) one.units.push_back(draw(0, units));
    if (std::ranges::max(one.units) == 0) one.units[0] = 1;
    one.rows = draw(1, 4);
    one.fill = {draw(1, 60)};
    one.period = {draw(1, 30)};
    for (int count = draw(0, 4); count > 0; --count) one.after.push_back({draw(0, 20)});
  }
  request.rows = draw(2, 200);
  request.pipelines = at(draw(1, 3));
  request.most_pipelines = at(draw(3, 5));
  request.divisions = 1000;
  request.slower = 1 + 0.1 * draw(0, 3);
  request.most_visits = 1 << 30;
  return request;
}

int64_t rows_of(const DivisionRequest& request, const std::vector<int>& columns, int64_t step) {
  int64_t sum = 0;
  for (const int c : columns) sum += rows_in(request.columns[at(c)], {step}, columns.size());
  return sum;
}

// Returns the least step of any multiset of columns, each with some rows.
int64_t by_trying_all(const DivisionRequest& request) {
  int64_t best = std::numeric_limits<int64_t>::max();
  std::vector<int> chosen;
  const auto extend = [&](const auto& self, size_t next, const Units& left) -> void {
    if (chosen.size() >= request.pipelines) {
      int64_t step = 1;
      const auto does_all = [&](int64_t t) {
        return rows_of(request, chosen, t) >= request.rows &&
               std::ranges::all_of(chosen, [&](int c) {
                 return rows_in(request.columns[at(c)], {t}, chosen.size()) > 0;
               });
      };
      while (step < best && !does_all(step)) ++step;
      best = std::min(best, step);
    }
    if (chosen.size() == request.most_pipelines) return;
    for (size_t c = next; c < request.columns.size(); ++c) {
      Units rest = left;
      bool fits = true;
      for (size_t k = 0; k < rest.size(); ++k)
        fits &= (rest[k] -= request.columns[c].units[k]) >= 0;
      if (!fits) continue;
      chosen.push_back(static_cast<int>(c));
      self(self, c, rest);
      chosen.pop_back();
    }
  };
  extend(extend, 0, request.units);
  return best;
}

TEST(Divisions, AreTheBestOfAll) {
  int possible = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const DivisionRequest request = random_request(seed);
    const int64_t best = by_trying_all(request);
    const std::vector<Division> found = best_divisions(request);
    if (best == std::numeric_limits<int64_t>::max()) {
      EXPECT_THAT(found, IsEmpty()) << seed;
      continue;
    }
    ++possible;
    ASSERT_FALSE(found.empty()) << seed;
    EXPECT_EQ(found[0].step.value, best) << seed;
    for (size_t i = 0; i < found.size(); ++i) {
      const Division& division = found[i];
      EXPECT_GE(division.columns.size(), request.pipelines) << seed;
      EXPECT_GE(rows_of(request, division.columns, division.step.value), request.rows) << seed;
      EXPECT_LE(static_cast<double>(division.step.value),
                static_cast<double>(best) * request.slower + 1)
          << seed;
      for (size_t k = 0; k < request.units.size(); ++k) {
        int used = 0;
        for (const int c : division.columns) used += request.columns[at(c)].units[k];
        EXPECT_LE(used, request.units[k]) << seed;
      }
      if (i > 0) EXPECT_LE(found[i - 1].step, division.step) << seed;
    }
  }
  EXPECT_GT(possible, 150);
}

TEST(Divisions, SplitRowsSoThatPipelinesEndTogether) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const DivisionRequest request = random_request(seed);
    std::vector<Column> columns = request.columns;
    const int64_t rows = std::max<int64_t>(request.rows, static_cast<int64_t>(columns.size()) * 4);
    const RowSplit split = split_rows(columns, rows);
    ASSERT_EQ(split.shares.size(), columns.size());
    int64_t sum = 0, all = 0, before = 0;
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto& [microbatches, own] = split.shares[c];
      EXPECT_GE(microbatches, 1) << seed;
      EXPECT_GE(own, microbatches) << seed;
      EXPECT_LE(own, microbatches * columns[c].rows) << seed;
      if (microbatches > 1)
        EXPECT_GE(rows_in(columns[c], split.step, columns.size()), microbatches * columns[c].rows)
            << seed;
      sum += own;
      all += std::max(columns[c].rows, rows_in(columns[c], split.step, columns.size()));
      before += std::max(columns[c].rows,
                         rows_in(columns[c], split.step - Nanoseconds{1}, columns.size()));
    }
    EXPECT_EQ(sum, rows) << seed;
    EXPECT_GE(all, rows) << seed;
    if (split.step > Nanoseconds{1}) EXPECT_LT(before, rows) << seed;  // no shorter step suffices
  }
}

}  // namespace
}  // namespace medley
