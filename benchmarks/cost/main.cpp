// Compares analytic op times with published ones on six types of GPU. A type's rates are calibrated
// on one model's table and judged on the tables of the others.
//
//   build/release/bin/op_costs [tests/data/published_op_times/times.csv]
//
// Fails if the median error of a type, calibrated on OPT-350, exceeds the limit. The tables of the
// two larger models are shown too. They have few times bound by the host, so they reveal little
// about launches.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "benchmarks/cost/published.h"

namespace medley {
namespace {

constexpr double kRequired = 0.15;  // median error
constexpr std::string_view kCalibratedOn = "OPT-350";

// The initial values are arbitrary: calibration replaces all that the tables determine.
const DeviceKind kStart{"", {{DType::kF16, 1e16}}, {{DType::kF16, 1e14}}, 1e10, 1e12, 5e-6};

std::vector<PublishedTime> of(const std::vector<PublishedTime>& all,
                              const std::string& device,
                              const std::string& model,
                              bool is_model) {
  std::vector<PublishedTime> some;
  for (const PublishedTime& each : all)
    if (each.device == device && (each.model == model) == is_model) some.push_back(each);
  return some;
}

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values.at(static_cast<size_t>(share * static_cast<double>(values.size() - 1)));
}

struct Judged {
  FittedKind fitted;
  std::vector<double> errors;
};

Judged judge(const std::vector<PublishedTime>& all,
             const std::string& device,
             const std::string& model) {
  std::vector<TimedBlock> blocks;
  for (const PublishedTime& each : of(all, device, model, true)) blocks.push_back(each.block);
  Judged result{fit_rates(kStart, blocks), {}};
  for (const PublishedTime& each : of(all, device, model, false))
    result.errors.push_back(
        std::abs(block_time(result.fitted, each.block.ops).value / each.block.time.value - 1));
  return result;
}

int run(const std::string& file) {
  const std::vector<PublishedTime> all = read_published_times(file);
  std::set<std::string> devices;
  for (const PublishedTime& each : all) devices.insert(each.device);
  bool all_reached = true;
  for (const auto& [model, sizes] : published_models()) {
    fmt::print("\ncalibrated on {}, judged on the others\n\n", model);
    fmt::print("| device | f16 | memory | launch | entry | times | median error | 90 % below |\n");
    fmt::print("|---|---|---|---|---|---|---|---|\n");
    for (const std::string& device : devices) {
      const auto& [fitted, errors] = judge(all, device, model);
      const double median = percentile(errors, 0.5);
      if (model == kCalibratedOn) all_reached = all_reached && median <= kRequired;
      fmt::print("| {} | {} | {} | {} | {} | {} | {:.1f} % | {:.0f} % |\n",
                 device,
                 to_string(FlopsPerSecond{fitted.kind.sustained.at(DType::kF16)}),
                 to_string(BytesPerSecond{fitted.kind.memory_bandwidth}),
                 to_string(Seconds{fitted.kind.launch_latency}),
                 to_string(fitted.entry),
                 errors.size(),
                 100 * median,
                 100 * percentile(errors, 0.9));
    }
  }
  fmt::print("\nrequired: median error of each at most {:.0f} %, calibrated on {}: {}\n",
             100 * kRequired,
             kCalibratedOn,
             all_reached ? "reached" : "NOT reached");
  return all_reached ? 0 : 1;
}

}  // namespace
}  // namespace medley

int main(int argc, char** argv) {
  try {
    return medley::run(argc > 1 ? argv[1] : "tests/data/published_op_times/times.csv");
  } catch (const medley::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
