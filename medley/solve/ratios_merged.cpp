#include "medley/solve/ratios_merged.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "medley/base/at.h"

namespace medley {
namespace {

// Returns all data of a device, for comparison with another one's.
std::vector<double> signature(const RatioProblem& problem, size_t device) {
  std::vector<double> all;
  all.reserve(problem.segments.size() * at(1 + problem.parts));
  for (const RatioSegment& segment : problem.segments) {
    all.push_back(segment.constant[device]);
    for (const auto& slope : segment.slope) all.push_back(slope[device]);
  }
  if (!problem.capacity.empty()) {
    all.push_back(problem.capacity[device]);
    all.push_back(problem.bytes[device]);
    for (const auto& bytes : problem.bytes_per_share) all.push_back(bytes[device]);
  }
  return all;
}

// Numbers classes in the order of their first devices; returns these.
std::vector<size_t> find_classes(const RatioProblem& problem, MergedRatios& merged) {
  std::map<std::vector<double>, int> known;
  std::vector<size_t> first;
  for (size_t device = 0; device < at(problem.devices); ++device) {
    const auto [at, is_new] =
        known.try_emplace(signature(problem, device), static_cast<int>(first.size()));
    if (is_new) {
      first.push_back(device);
      merged.members.push_back(0);
    }
    merged.class_of.push_back(at->second);
    ++merged.members[static_cast<size_t>(at->second)];
  }
  return first;
}

MergedSegment of_classes(const RatioSegment& segment, const std::vector<size_t>& first) {
  MergedSegment merged;
  merged.count = 1;
  for (size_t device : first) merged.floor = std::max(merged.floor, segment.constant[device]);
  for (size_t device : first)
    merged.coefficients.push_back(segment.constant[device] - merged.floor);
  for (const auto& slope : segment.slope)
    for (size_t device : first) merged.coefficients.push_back(slope[device]);
  return merged;
}

MergedSegment of_exchange(const RatioExchange& exchange, size_t classes) {
  MergedSegment merged;
  merged.count = 1;
  merged.exchange = true;
  merged.floor = exchange.constant;
  merged.coefficients.assign(classes, 0);
  for (double slope : exchange.slope)
    merged.coefficients.insert(merged.coefficients.end(), classes, slope);
  return merged;
}

}  // namespace

MergedRatios merge_equal(const RatioProblem& problem) {
  MergedRatios merged;
  merged.parts = problem.parts;
  const std::vector<size_t> first = find_classes(problem, merged);

  std::map<std::pair<bool, std::vector<double>>, size_t> known;
  auto add = [&](MergedSegment segment) {
    merged.floor += segment.floor;
    const auto slopes = segment.coefficients.begin() + static_cast<std::ptrdiff_t>(first.size());
    if (slopes == segment.coefficients.end()) return;
    const double largest = *std::max_element(slopes, segment.coefficients.end());
    if (largest == 0) return;
    for (double& each : segment.coefficients) each /= largest;
    segment.seconds = largest;
    const auto [at, is_new] =
        known.try_emplace({segment.exchange, segment.coefficients}, merged.segments.size());
    if (is_new) {
      merged.segments.push_back(std::move(segment));
      return;
    }
    merged.segments[at->second].seconds += segment.seconds;
    merged.segments[at->second].count += 1;
  };
  for (const RatioSegment& segment : problem.segments) add(of_classes(segment, first));
  for (const RatioExchange& exchange : problem.exchanges) add(of_exchange(exchange, first.size()));

  if (problem.capacity.empty()) return merged;
  for (size_t device : first)
    merged.room.push_back(problem.capacity[device] - problem.bytes[device]);
  for (const auto& bytes : problem.bytes_per_share)
    for (size_t device : first) merged.bytes_per_share.push_back(bytes[device]);
  return merged;
}

double seconds_above_floor(const MergedRatios& problem,
                           const ClassShares& shares,
                           std::vector<int>* binding) {
  const size_t classes = problem.num_classes();
  if (binding) binding->clear();
  std::vector<double> seconds(classes);
  double sum = 0;
  for (const MergedSegment& segment : problem.segments) {
    const double* row = segment.coefficients.data();
    for (size_t c = 0; c < classes; ++c) seconds[c] = row[c];
    for (size_t at = 0; at < shares.size(); at += classes)
      for (size_t c = 0; c < classes; ++c) seconds[c] += row[classes + at + c] * shares[at + c];
    const auto last = std::max_element(seconds.begin(), seconds.end());
    sum += segment.seconds * *last;
    if (binding) binding->push_back(static_cast<int>(last - seconds.begin()));
  }
  return sum;
}

}  // namespace medley
