#include "medley/planner/survive.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/elastic/second_homes.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

constexpr int64_t kLeastSteps = 2;
constexpr Nanoseconds kNever{int64_t{1} << 60};

}  // namespace

int64_t steps_between_copies(Nanoseconds copies, Nanoseconds step) {
  if (step.value <= 0) return kLeastSteps;
  return std::max(kLeastSteps, (kShareOfCopies * copies.value + step.value - 1) / step.value);
}

Nanoseconds Survival::costs() const {
  if (without > 0) return kNever;
  return every == 0 ? Nanoseconds{} : Nanoseconds{copies.value / every};
}

Survival survival(const Program& program, const Cluster& cluster, Nanoseconds step) {
  const Neighbourhood places = neighbourhood_of(program, cluster);
  const SecondHomes homes = second_homes(program, places);
  Survival result;
  result.without = homes.without;
  std::map<int, double> sends, receives;  // seconds, by device
  for (const SecondHome& home : homes.homes) {
    const double takes = static_cast<double>(home.bytes()) * places.byte_time(home.from, home.to);
    result.bytes += home.bytes();
    sends[home.from] += takes;
    receives[home.to] += takes;
  }
  double most = 0;
  for (const auto* each : {&sends, &receives})
    for (const auto& [device, seconds] : *each) most = std::max(most, seconds);
  result.copies = to_nanoseconds(Seconds{most});
  if (homes.homes.empty()) return result;
  result.every = steps_between_copies(result.copies, step);
  return result;
}

std::string to_string(const Survival& survival, Nanoseconds step) {
  if (survival.without > 0) return cannot_survive(survival);
  if (survival.every == 0) return "any node may be lost: all of the state is on two or more";
  return fmt::format(
      "any node may be lost: {} that only one has are copied to others every {} steps, {:.2g} % of "
      "the time",
      to_string(Bytes{survival.bytes}),
      survival.every,
      100 * (survival.costs() / step));
}

std::string cannot_survive(const Survival& survival) {
  return fmt::format("{} of the state are on one node, and no other node has room for a copy",
                     to_string(Bytes{survival.without}));
}

}  // namespace medley
