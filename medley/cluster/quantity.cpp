#include "medley/cluster/quantity.h"

#include <array>
#include <charconv>
#include <cmath>

#include "medley/base/at.h"

namespace medley {
namespace {

struct Unit {
  std::string_view text;
  Dimension dimension;
  double factor;
};

constexpr double kKi = 1024;
constexpr std::array kUnits{
    Unit{"B/s", Dimension::kBandwidth, 1},
    Unit{"kB/s", Dimension::kBandwidth, 1e3},
    Unit{"MB/s", Dimension::kBandwidth, 1e6},
    Unit{"GB/s", Dimension::kBandwidth, 1e9},
    Unit{"TB/s", Dimension::kBandwidth, 1e12},
    Unit{"KiB/s", Dimension::kBandwidth, kKi},
    Unit{"MiB/s", Dimension::kBandwidth, kKi* kKi},
    Unit{"GiB/s", Dimension::kBandwidth, kKi* kKi* kKi},
    Unit{"bit/s", Dimension::kBandwidth, 1.0 / 8},
    Unit{"kbit/s", Dimension::kBandwidth, 1e3 / 8},
    Unit{"Mbit/s", Dimension::kBandwidth, 1e6 / 8},
    Unit{"Gbit/s", Dimension::kBandwidth, 1e9 / 8},
    Unit{"Tbit/s", Dimension::kBandwidth, 1e12 / 8},
    Unit{"ns", Dimension::kDuration, 1e-9},
    Unit{"us", Dimension::kDuration, 1e-6},
    Unit{"ms", Dimension::kDuration, 1e-3},
    Unit{"s", Dimension::kDuration, 1},
    Unit{"min", Dimension::kDuration, 60},
    Unit{"h", Dimension::kDuration, 3600},
    Unit{"B", Dimension::kMemory, 1},
    Unit{"kB", Dimension::kMemory, 1e3},
    Unit{"MB", Dimension::kMemory, 1e6},
    Unit{"GB", Dimension::kMemory, 1e9},
    Unit{"TB", Dimension::kMemory, 1e12},
    Unit{"KiB", Dimension::kMemory, kKi},
    Unit{"MiB", Dimension::kMemory, kKi* kKi},
    Unit{"GiB", Dimension::kMemory, kKi* kKi* kKi},
    Unit{"TiB", Dimension::kMemory, kKi* kKi* kKi* kKi},
    Unit{"flop/s", Dimension::kFlopRate, 1},
    Unit{"Mflop/s", Dimension::kFlopRate, 1e6},
    Unit{"Gflop/s", Dimension::kFlopRate, 1e9},
    Unit{"Tflop/s", Dimension::kFlopRate, 1e12},
    Unit{"Pflop/s", Dimension::kFlopRate, 1e15},
};

}  // namespace

std::optional<double> parse_quantity(std::string_view text, Dimension dimension) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  std::string_view unit = text.substr(at(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& each : kUnits) {
    if (each.dimension != dimension || each.text != unit) continue;
    const double value = number * each.factor;
    if (!std::isfinite(value)) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

std::string_view expected_quantity(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBandwidth:
      return R"(a bandwidth such as "300 GB/s" or "10 Gbit/s")";
    case Dimension::kDuration:
      return R"(a duration such as "3 us" or "0.5 ms")";
    case Dimension::kMemory:
      return R"(an amount of memory such as "16 GiB" or "40 GB")";
    case Dimension::kFlopRate:
      return R"(a rate such as "312 Tflop/s")";
  }
  return "";
}

}  // namespace medley
