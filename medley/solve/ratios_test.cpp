#include "medley/solve/ratios.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "medley/base/error.h"
#include "medley/solve/ratios_cuts.h"
#include "medley/solve/ratios_water.h"

namespace medley {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

MATCHER_P(NearlyEq, tolerance, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance;
}

Ratios solved(const RatioProblem& problem) {
  const auto outcome = best_ratios(problem);
  EXPECT_TRUE(std::holds_alternative<Ratios>(outcome));
  return std::get<Ratios>(outcome);
}

RatioMisfit misfit(const RatioProblem& problem) {
  return std::get<RatioMisfit>(best_ratios(problem));
}

// Returns the objective as defined in the header.
double objective(const RatioProblem& problem, const std::vector<std::vector<double>>& shares) {
  double sum = 0;
  for (const RatioSegment& segment : problem.segments) {
    double last = 0;
    for (size_t i = 0; i < segment.constant.size(); ++i) {
      double seconds = segment.constant[i];
      for (size_t k = 0; k < shares.size(); ++k) seconds += segment.slope[k][i] * shares[k][i];
      last = std::max(last, seconds);
    }
    sum += last;
  }
  for (const RatioExchange& exchange : problem.exchanges) {
    double last = 0;
    for (size_t i = 0; i < at(problem.devices); ++i) {
      double seconds = exchange.constant;
      for (size_t k = 0; k < shares.size(); ++k) seconds += exchange.slope[k] * shares[k][i];
      last = std::max(last, seconds);
    }
    sum += last;
  }
  return sum;
}

bool fits(const RatioProblem& problem, const std::vector<std::vector<double>>& shares) {
  for (size_t i = 0; i < problem.capacity.size(); ++i) {
    double bytes = problem.bytes[i];
    for (size_t k = 0; k < shares.size(); ++k)
      bytes += problem.bytes_per_share[k][i] * shares[k][i];
    if (bytes > problem.capacity[i] * (1 + 1e-6)) return false;
  }
  return true;
}

// `fast` devices of speed `ratio` and `slow` ones of speed 1 do `work`; then all gather it from
// shards padded to the largest.
RatioProblem work_and_gather(int fast, int slow, double ratio, double work, double gather) {
  RatioProblem problem{.devices = fast + slow, .parts = 1};
  RatioSegment segment{.constant = std::vector<double>(at(fast + slow), 0)};
  segment.slope.resize(1);
  for (int i = 0; i < fast + slow; ++i) segment.slope[0].push_back(i < fast ? work / ratio : work);
  problem.segments = {segment};
  problem.exchanges = {{.constant = 0, .slope = {gather}}};
  return problem;
}

// Returns an equally slow problem with a second part and type of segment: not the closed form.
RatioProblem in_two_parts(RatioProblem problem) {
  problem.parts = 2;
  for (RatioSegment& segment : problem.segments)
    segment.slope.emplace_back(segment.constant.size(), 0);
  for (RatioExchange& exchange : problem.exchanges) exchange.slope.push_back(0);
  for (size_t k = problem.bytes_per_share.size(); !problem.capacity.empty() && k < 2; ++k)
    problem.bytes_per_share.emplace_back(problem.capacity.size(), 0);
  return problem;
}

// With a fast devices and b slow ones the proportional division is best while gather / work < a /
// b, the even one above, for any ratio of speeds.
TEST(Ratios, SwitchFromProportionalToEven) {
  for (const auto& [fast, slow] : {std::pair{2, 6}, {1, 1}, {3, 2}, {16, 48}}) {
    for (double ratio : {1.5, 2.0, 7.0}) {
      const double threshold = static_cast<double>(fast) / slow;
      for (double near : {0.1, 0.99, 1.01, 4.0}) {
        const RatioProblem problem = work_and_gather(fast, slow, ratio, 3.0, 3 * near * threshold);
        const double speed = near < 1 ? ratio : 1;
        const double share = speed / (fast * speed + slow);
        EXPECT_NEAR(solved(problem).shares[0][0], share, 1e-12);
        EXPECT_NEAR(solved(in_two_parts(problem)).shares[0][0], share, 1e-6);
      }
    }
  }
}

// HAP's program is infeasible for an op of more than a second; its solver then returns
// uninitialised ratios. The unit of time must not matter.
TEST(Ratios, LongSegmentsAreFeasible) {
  const Ratios seconds = solved(in_two_parts(work_and_gather(2, 6, 2, 1, 0.1)));
  for (double unit : {1e-9, 1e-3, 60.0, 1e9}) {
    const Ratios scaled = solved(in_two_parts(work_and_gather(2, 6, 2, unit, 0.1 * unit)));
    EXPECT_NEAR(scaled.seconds, unit * seconds.seconds, 1e-6 * unit);
    EXPECT_THAT(scaled.shares[0], Pointwise(NearlyEq(1e-6), seconds.shares[0]));
  }
}

// HAP omits constants. A device's fixed time reduces its share: 3 + 9 * 1/3 = 0 + 9 * 2/3.
TEST(Ratios, ConstantsCount) {
  RatioProblem problem{.devices = 2, .parts = 1};
  problem.segments = {{.constant = {3, 0}, .slope = {{9, 9}}}};
  EXPECT_THAT(solved(problem).shares[0],
              ElementsAre(DoubleNear(1. / 3, 1e-12), DoubleNear(2. / 3, 1e-12)));
  EXPECT_NEAR(solved(problem).seconds, 6, 1e-12);
  EXPECT_NEAR(solved(in_two_parts(problem)).seconds, 6, 1e-6);
}

// Two ops of one segment may be slowest on different devices; the segment takes the larger sum: 4 +
// 6 / 2. With a wait in between each has its own slowest device: 4 + x and max(5 x, 4 + 5 (1 - x))
// for a share x of device 0, least at x = 0.9.
TEST(Ratios, OnlySegmentsWait) {
  RatioProblem together{.devices = 2, .parts = 1};
  together.segments = {{.constant = {4, 4}, .slope = {{6, 6}}}};
  EXPECT_NEAR(solved(together).seconds, 7, 1e-9);
  RatioProblem apart{.devices = 2, .parts = 1};
  apart.segments = {{.constant = {4, 0}, .slope = {{1, 1}}},
                    {.constant = {0, 4}, .slope = {{5, 5}}}};
  EXPECT_NEAR(solved(apart).seconds, 4.9 + 4.5, 1e-4);
  EXPECT_NEAR(solved(apart).shares[0][0], 0.9, 1e-4);
}

TEST(Ratios, MemoryCapsAShare) {
  RatioProblem problem = work_and_gather(1, 2, 4, 1, 0);
  problem.bytes = {10, 0, 0};
  problem.capacity = {50, 100, 100};
  problem.bytes_per_share = {{100, 100, 100}};
  for (const RatioProblem& each : {problem, in_two_parts(problem)})
    EXPECT_THAT(solved(each).shares[0], Pointwise(NearlyEq(1e-6), {0.4, 0.3, 0.3}));
}

TEST(Ratios, ADeviceWithoutMemoryGetsNothing) {
  RatioProblem problem = work_and_gather(1, 2, 4, 1, 0);
  problem.bytes = {0, 0, 0};
  problem.capacity = {0, 100, 100};
  problem.bytes_per_share = {{100, 100, 100}};
  for (const RatioProblem& each : {problem, in_two_parts(problem)})
    EXPECT_THAT(solved(each).shares[0], Pointwise(NearlyEq(1e-6), {0.0, 0.5, 0.5}));
}

// 120 + 60 + 60 of 300 bytes fit: the least possible deficit is 20 each.
TEST(Ratios, MisfitNamesDeviceAndBytes) {
  RatioProblem problem = work_and_gather(1, 2, 4, 1, 0);
  problem.bytes = {0, 0, 0};
  problem.capacity = {120, 60, 60};
  problem.bytes_per_share = {{300, 300, 300}};
  for (const RatioProblem& each : {problem, in_two_parts(problem)})
    EXPECT_NEAR(misfit(each).missing_bytes, 20, 1e-6);

  problem.bytes = {0, 0, 70};  // for any shares
  problem.bytes_per_share = {{1, 1, 1}};
  for (const RatioProblem& each : {problem, in_two_parts(problem)}) {
    EXPECT_EQ(misfit(each).device, 2);
    EXPECT_NEAR(misfit(each).missing_bytes, 10, 1e-6);
  }
}

TEST(Ratios, OneDeviceHasAll) {
  RatioProblem problem{.devices = 1, .parts = 2};
  problem.segments = {{.constant = {1}, .slope = {{2}, {0}}},
                      {.constant = {0}, .slope = {{0}, {5}}}};
  problem.exchanges = {{.constant = 0.5, .slope = {1, 0}}};
  const Ratios ratios = solved(problem);
  EXPECT_THAT(ratios.shares, ElementsAre(ElementsAre(1), ElementsAre(1)));
  EXPECT_THAT(ratios.weights, ElementsAre(1));
  EXPECT_NEAR(ratios.seconds, 9.5, 1e-12);
}

// Free parts, or parts hidden by others, are divided by speed, and evenly if no speed is known. A
// solver could assign all of it to one device.
TEST(Ratios, FreePartsAreBalanced) {
  RatioProblem free{.devices = 3, .parts = 1};
  EXPECT_THAT(solved(free).shares[0], Pointwise(NearlyEq(1e-9), {1. / 3, 1. / 3, 1. / 3}));
  EXPECT_EQ(solved(free).seconds, 0);

  RatioProblem hidden{.devices = 3, .parts = 2};
  hidden.segments = {{.constant = {100, 0, 0}, .slope = {{9, 9, 9}, {2, 1, 1}}}};
  const Ratios ratios = solved(hidden);
  EXPECT_NEAR(ratios.seconds, 100, 1e-4);
  EXPECT_GT(ratios.shares[1][1], 0.1);
  EXPECT_GT(ratios.shares[1][2], 0.1);
}

// A plan without freedom is priced too.
TEST(Ratios, SolvesProblemsWithoutParts) {
  RatioProblem problem{.devices = 2, .parts = 0};
  problem.segments = {{.constant = {1, 2}}, {.constant = {3, 1}}};
  problem.exchanges = {{.constant = 0.5}};
  EXPECT_THAT(solved(problem).shares, ElementsAre());
  EXPECT_NEAR(solved(problem).seconds, 5.5, 1e-12);
  problem.bytes = {5, 9};
  problem.capacity = {6, 6};
  EXPECT_EQ(misfit(problem).device, 1);
  EXPECT_NEAR(misfit(problem).missing_bytes, 3, 1e-9);
}

struct Shape {
  int devices, parts, segments, exchanges;
  bool memory;
};

RatioProblem random_problem(std::mt19937_64& random, const Shape& shape) {
  std::uniform_real_distribution<double> number(0.1, 2);
  auto numbers = [&](int zero_in) {
    std::vector<double> all(at(shape.devices));
    for (double& each : all)
      each = zero_in > 0 && random() % static_cast<uint64_t>(zero_in) == 0 ? 0 : number(random);
    return all;
  };
  RatioProblem problem{.devices = shape.devices, .parts = shape.parts};
  for (int s = 0; s < shape.segments; ++s) {
    RatioSegment segment{.constant = numbers(2)};
    for (double& each : segment.constant) each /= 10;
    for (int k = 0; k < shape.parts; ++k)
      segment.slope.push_back(numbers(shape.parts + shape.segments > 2 ? 3 : 0));
    problem.segments.push_back(segment);
  }
  for (int e = 0; e < shape.exchanges; ++e) {
    RatioExchange exchange{.constant = number(random)};
    for (int k = 0; k < shape.parts; ++k) exchange.slope.push_back(number(random));
    problem.exchanges.push_back(exchange);
  }
  if (!shape.memory) return problem;
  problem.bytes = numbers(2);
  problem.capacity = numbers(0);
  for (double& each : problem.capacity) each *= 4;
  for (int k = 0; k < shape.parts; ++k) problem.bytes_per_share.push_back(numbers(4));
  return problem;
}

TEST(Ratios, ClosedFormAndProgramAgree) {
  std::mt19937_64 random(3);
  int levelled = 0, capped = 0;
  for (int round = 0; round < 400; ++round) {
    const RatioProblem problem = random_problem(
        random, {1 + static_cast<int>(random() % 7), 1, 1, round % 2, random() % 2 == 0});
    const MergedRatios merged = merge_equal(problem);
    if (missing_room(merged).bytes > 0) continue;
    ASSERT_TRUE(is_water(merged));
    const ClassRatios water = fill_water(merged), cuts = cut_planes(merged);
    const double seconds = seconds_above_floor(merged, water.shares);
    EXPECT_NEAR(seconds, seconds_above_floor(merged, cuts.shares), 1e-5 * (seconds + merged.floor));
    EXPECT_TRUE(fits(problem, {water.shares}));
    const double most = *std::max_element(water.shares.begin(), water.shares.end());
    levelled += std::count(water.shares.begin(), water.shares.end(), most) > 1;
    capped += problem.capacity.size() > 1;
  }
  EXPECT_GT(levelled, 30);
  EXPECT_GT(capped, 30);
}

// For any B, sum_i w_i (constant_i + slope_i B_i) + slope max_i B_i is a lower bound. It is least
// for B even over the devices of least w_i slope_i, and tight if the weights are the duals.
TEST(Ratios, WeightsBoundFromBelow) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const RatioProblem problem =
        random_problem(random, {1 + static_cast<int>(random() % 6), 1, 1, round % 2, false});
    const Ratios ratios = solved(problem);
    std::vector<double> prices;
    double bound = 0, exchange = 0;
    for (size_t i = 0; i < ratios.weights.size(); ++i) {
      bound += ratios.weights[i] * problem.segments[0].constant[i];
      prices.push_back(ratios.weights[i] * problem.segments[0].slope[0][i]);
    }
    if (!problem.exchanges.empty()) {
      bound += problem.exchanges[0].constant;
      exchange = problem.exchanges[0].slope[0];
    }
    std::sort(prices.begin(), prices.end());
    double least = std::numeric_limits<double>::infinity();
    for (size_t m = 1; m <= prices.size(); ++m) {
      exchange += prices[m - 1];
      least = std::min(least, exchange / static_cast<double>(m));
    }
    EXPECT_NEAR(bound + least, ratios.seconds, 1e-9) << round;
  }
}

// Calls `visit` for all divisions in steps of 1 / steps.
void for_grid(int devices,
              int parts,
              int steps,
              const std::function<void(const std::vector<std::vector<double>>&)>& visit) {
  std::vector<std::vector<double>> shares(at(parts), std::vector<double>(at(devices)));
  std::function<void(size_t, size_t, int)> divide = [&](size_t k, size_t i, int left) {
    if (k == shares.size()) return visit(shares);
    if (i + 1 == shares[k].size()) {
      shares[k][i] = static_cast<double>(left) / steps;
      return divide(k + 1, 0, steps);
    }
    for (int units = 0; units <= left; ++units) {
      shares[k][i] = static_cast<double>(units) / steps;
      divide(k, i + 1, left - units);
    }
  };
  divide(0, 0, steps);
}

TEST(Ratios, NoDivisionOnAGridIsBetter) {
  std::mt19937_64 random(11);
  int misfits = 0;
  for (int round = 0; round < 120; ++round) {
    const int devices = 2 + static_cast<int>(random() % 2),
              parts = 1 + static_cast<int>(random() % 2);
    const RatioProblem problem = random_problem(random,
                                                {devices,
                                                 parts,
                                                 1 + static_cast<int>(random() % 4),
                                                 static_cast<int>(random() % 3),
                                                 random() % 3 == 0});
    const int steps = devices == 3 && parts == 2 ? 20 : 60;
    double best = std::numeric_limits<double>::infinity();
    for_grid(devices, parts, steps, [&](const auto& shares) {
      if (fits(problem, shares)) best = std::min(best, objective(problem, shares));
    });
    const auto outcome = best_ratios(problem);
    const auto* ratios = std::get_if<Ratios>(&outcome);
    misfits += !ratios;
    if (!ratios) {
      EXPECT_TRUE(std::isinf(best));
      continue;
    }
    EXPECT_TRUE(fits(problem, ratios->shares));
    EXPECT_NEAR(ratios->seconds, objective(problem, ratios->shares), 1e-9);
    EXPECT_LE(ratios->seconds, best + 1e-5);
    for (const auto& part : ratios->shares) {
      double sum = 0;
      for (double share : part) {
        EXPECT_GE(share, 0);
        sum += share;
      }
      EXPECT_NEAR(sum, 1, 1e-9);
    }
    // A grid point near the best division is hardly worse, unless memory forbids it.
    if (problem.capacity.empty()) {
      const double slopes =
          2.0 * parts * static_cast<double>(problem.segments.size() + problem.exchanges.size());
      EXPECT_GE(ratios->seconds, best - slopes * devices / steps);
    }
  }
  EXPECT_GT(misfits, 2);
}

// Devices and layers may differ by many orders of magnitude, in any unit of time.
TEST(Ratios, AnyScaleIsSolved) {
  std::mt19937_64 random(19);
  std::uniform_real_distribution<double> exponent(-3, 3);
  for (int round = 0; round < 300; ++round) {
    RatioProblem problem = random_problem(random,
                                          {2 + static_cast<int>(random() % 8),
                                           1 + static_cast<int>(random() % 3),
                                           1 + static_cast<int>(random() % 12),
                                           static_cast<int>(random() % 4),
                                           false});
    const double unit = std::pow(10, 2 * exponent(random));
    for (RatioSegment& segment : problem.segments) {
      for (double& each : segment.constant) each *= unit * std::pow(10, exponent(random));
      for (auto& slope : segment.slope)
        for (double& each : slope) each *= unit * std::pow(10, exponent(random));
    }
    const Ratios ratios = solved(problem);
    const auto devices = at(problem.devices);
    const auto parts = at(problem.parts);
    EXPECT_NEAR(ratios.seconds / objective(problem, ratios.shares), 1, 1e-9);
    const std::vector even(parts, std::vector(devices, 1 / static_cast<double>(devices)));
    EXPECT_LE(ratios.seconds, (1 + 1e-5) * objective(problem, even));
    for (size_t i = 0; i < devices; ++i) {
      std::vector<std::vector<double>> one(parts, std::vector<double>(devices, 0));
      for (auto& part : one) part[i] = 1;
      EXPECT_LE(ratios.seconds, (1 + 1e-5) * objective(problem, one));
    }
  }
}

// 64 devices of three types, every layer slightly different.
TEST(Ratios, EqualDevicesGetEqualSharesEveryTime) {
  std::mt19937_64 random(13);
  const RatioProblem kinds = random_problem(random, {3, 2, 200, 20, true});
  auto kind = [](size_t device) { return device % 5 == 0 ? 0 : 1 + device % 2; };
  RatioProblem problem{.devices = 64, .parts = 2};
  problem.exchanges = kinds.exchanges;
  auto spread = [&](const std::vector<double>& from) {
    std::vector<double> to;
    for (size_t i = 0; i < 64; ++i) to.push_back(from[kind(i)]);
    return to;
  };
  for (const RatioSegment& segment : kinds.segments)
    problem.segments.push_back({.constant = spread(segment.constant),
                                .slope = {spread(segment.slope[0]), spread(segment.slope[1])}});
  const Ratios ratios = solved(problem), again = solved(problem);
  EXPECT_EQ(ratios.shares, again.shares);
  EXPECT_EQ(ratios.weights, again.weights);
  double sum = 0;
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < i; ++j)
      if (kind(i) == kind(j)) {
        EXPECT_EQ(ratios.shares[0][i], ratios.shares[0][j]);
      }
    sum += ratios.weights[i];
  }
  EXPECT_NEAR(sum, 1, 1e-9);
}

// Repeated layers count as often as they occur.
TEST(Ratios, RepeatedSegmentsCount) {
  std::mt19937_64 random(17);
  RatioProblem once = random_problem(random, {4, 2, 5, 3, false});
  RatioProblem often = once;
  for (int i = 0; i < 9; ++i) {
    often.segments.insert(often.segments.end(), once.segments.begin(), once.segments.end());
    often.exchanges.insert(often.exchanges.end(), once.exchanges.begin(), once.exchanges.end());
  }
  EXPECT_NEAR(solved(often).seconds, 10 * solved(once).seconds, 1e-4);
  EXPECT_NEAR(solved(often).seconds, objective(often, solved(often).shares), 1e-9);
}

TEST(Ratios, NumbersThatAreNoneAreOurFault) {
  for (double wrong : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    RatioProblem problem = work_and_gather(1, 1, 2, 1, 1);
    problem.segments[0].slope[0][1] = wrong;
    EXPECT_THROW(static_cast<void>(best_ratios(problem)), Error);
  }
  RatioProblem problem = work_and_gather(1, 1, 2, 1, 1);
  problem.capacity = {1};
  EXPECT_THROW(static_cast<void>(best_ratios(problem)), Error);
}

}  // namespace
}  // namespace medley
