#include "medley/solve/ratios.h"

#include <algorithm>
#include <cmath>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/solve/ratios_cuts.h"
#include "medley/solve/ratios_merged.h"
#include "medley/solve/ratios_water.h"

namespace medley {
namespace {

// Tolerance of memory, relative to the largest number of bytes.
constexpr double kRoomTolerance = 1e-9;

void verify_numbers(const std::vector<double>& numbers, size_t size) {
  MEDLEY_CHECK_EQ(numbers.size(), size);
  for (double each : numbers) MEDLEY_CHECK(std::isfinite(each) && each >= 0);
}

void verify_sizes(const RatioProblem& problem) {
  MEDLEY_CHECK(problem.devices >= 1 && problem.parts >= 0);
  const auto devices = at(problem.devices);
  const auto parts = at(problem.parts);
  for (const RatioSegment& segment : problem.segments) {
    verify_numbers(segment.constant, devices);
    MEDLEY_CHECK_EQ(segment.slope.size(), parts);
    for (const auto& slope : segment.slope) verify_numbers(slope, devices);
  }
  for (const RatioExchange& exchange : problem.exchanges) {
    verify_numbers({exchange.constant}, 1);
    verify_numbers(exchange.slope, parts);
  }
  if (problem.capacity.empty()) {
    MEDLEY_CHECK(problem.bytes.empty() && problem.bytes_per_share.empty());
    return;
  }
  verify_numbers(problem.capacity, devices);
  verify_numbers(problem.bytes, devices);
  MEDLEY_CHECK_EQ(problem.bytes_per_share.size(), parts);
  for (const auto& bytes : problem.bytes_per_share) verify_numbers(bytes, devices);
}

// Returns the first device with the largest deficit.
RatioMisfit misfit(const MergedRatios& merged, const MissingRoom& missing) {
  RatioMisfit worst{.device = 0, .missing_bytes = -1};
  const size_t classes = merged.num_classes();
  for (size_t device = 0; device < merged.class_of.size(); ++device) {
    const auto c = at(merged.class_of[device]);
    double lacks = -merged.room[c];
    for (size_t at = c; at < missing.shares.size(); at += classes)
      lacks += merged.bytes_per_share[at] * missing.shares[at];
    if (lacks > worst.missing_bytes * (1 + kRoomTolerance))
      worst = {static_cast<int>(device), lacks};
  }
  return worst;
}

Ratios of_devices(const MergedRatios& merged, const ClassRatios& found) {
  const size_t devices = merged.class_of.size(), classes = merged.num_classes();
  Ratios ratios;
  ratios.seconds = merged.floor + seconds_above_floor(merged, found.shares);
  for (size_t at = 0; at < found.shares.size(); at += classes) {
    std::vector<double>& shares = ratios.shares.emplace_back();
    for (int c : merged.class_of) shares.push_back(found.shares[at + static_cast<size_t>(c)]);
  }
  double sum = 0;
  for (double weight : found.weights) sum += weight;
  for (int c : merged.class_of)
    ratios.weights.push_back(sum > 0 ? found.weights[at(c)] / sum / merged.members[at(c)]
                                     : 1 / static_cast<double>(devices));
  return ratios;
}

}  // namespace

std::variant<Ratios, RatioMisfit> best_ratios(const RatioProblem& problem) {
  verify_sizes(problem);
  const MergedRatios merged = merge_equal(problem);
  if (!merged.room.empty()) {
    const MissingRoom missing = missing_room(merged);
    const double most = *std::max_element(problem.capacity.begin(), problem.capacity.end());
    if (missing.bytes > kRoomTolerance * std::max(1.0, most)) return misfit(merged, missing);
  }
  return of_devices(merged, is_water(merged) ? fill_water(merged) : cut_planes(merged));
}

}  // namespace medley
