#include "medley/cost/fit_rates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr double kFirstStep = 0.5;  // in logarithms
constexpr double kLastStep = 1e-3;
constexpr double kStartingLaunches[] = {5e-6, 2e-5, 8e-5};  // seconds; the best result wins

double roof(const DeviceKind& kind, const OpWork& op) {
  if (op.work_class == WorkClass::kView) return 0;
  const double compute =
      op.work.flops > 0 ? op.work.flops / sustained_rate(kind, op.dtype).value : 0;
  return std::max(compute, op.work.bytes / kind.memory_bandwidth);
}

double mean_error(const FittedKind& fitted, std::span<const TimedBlock> blocks) {
  double sum = 0;
  for (const TimedBlock& each : blocks)
    sum += std::abs(std::log(block_time(fitted, each.ops).value / each.time.value));
  return sum / static_cast<double>(blocks.size());
}

std::vector<double*> figures(FittedKind& fitted, const std::set<DType>& computes) {
  std::vector<double*> all{
      &fitted.kind.memory_bandwidth, &fitted.kind.launch_latency, &fitted.entry.value};
  for (DType dtype : computes) all.push_back(&fitted.kind.sustained.at(dtype));
  return all;
}

// Returns the final error.
double descend(FittedKind& fitted,
               const std::set<DType>& computes,
               std::span<const TimedBlock> blocks) {
  const std::vector<double*> free = figures(fitted, computes);
  double best = mean_error(fitted, blocks);
  for (double step = kFirstStep; step > kLastStep;) {
    bool better = false;
    for (double* figure : free)
      for (const double factor : {std::exp(step), std::exp(-step)}) {
        const double before = *figure;
        *figure *= factor;
        const double error = mean_error(fitted, blocks);
        if (error < best) {
          best = error;
          better = true;
        } else {
          *figure = before;
        }
      }
    if (!better) step /= 2;
  }
  return best;
}

}  // namespace

Seconds block_time(const FittedKind& fitted, std::span<const OpWork> ops) {
  double device = 0, host = fitted.entry.value;
  for (const OpWork& each : ops) {
    if (each.work_class == WorkClass::kView) continue;
    host += fitted.kind.launch_latency;
    device += roof(fitted.kind, each);
  }
  return {std::max(host, device)};
}

FittedKind fit_rates(const DeviceKind& start, std::span<const TimedBlock> blocks) {
  MEDLEY_CHECK(!blocks.empty());
  std::set<DType> computes;
  for (const TimedBlock& block : blocks) {
    MEDLEY_CHECK(block.time.value > 0 && !block.ops.empty());
    for (const OpWork& op : block.ops)
      if (op.work.flops > 0) computes.insert(is_floating(op.dtype) ? op.dtype : DType::kF32);
  }
  FittedKind best;
  double least = std::numeric_limits<double>::infinity();
  for (const double launch : kStartingLaunches) {
    FittedKind fitted{start, {launch}};
    fitted.kind.launch_latency = launch;
    const double error = descend(fitted, computes, blocks);
    if (error >= least) continue;
    least = error;
    best = fitted;
  }
  return best;
}

}  // namespace medley
