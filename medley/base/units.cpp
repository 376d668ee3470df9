#include "medley/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>

#include "medley/base/error.h"

namespace medley {
namespace {

struct Prefix {
  double factor;
  const char* name;
};

constexpr std::array kBinary = {Prefix{0x1p40, " TiB"},
                                Prefix{0x1p30, " GiB"},
                                Prefix{0x1p20, " MiB"},
                                Prefix{0x1p10, " KiB"},
                                Prefix{1, " B"}};
constexpr std::array kTime = {
    Prefix{1, " s"}, Prefix{1e-3, " ms"}, Prefix{1e-6, " us"}, Prefix{1e-9, " ns"}};
constexpr std::array kDecimal = {
    Prefix{1e15, " P"}, Prefix{1e12, " T"}, Prefix{1e9, " G"}, Prefix{1e6, " M"}, Prefix{1, " "}};

// Prints the value with the largest prefix that leaves at least one before the point.
std::string scaled(double value, std::span<const Prefix> prefixes, const char* unit = "") {
  for (const Prefix& prefix : prefixes) {
    if (std::abs(value) >= prefix.factor) {
      double shown = value / prefix.factor;
      // Four digits keep "1023 MiB" whole; three are enough for the rest.
      int digits = std::abs(shown) >= 999.5 ? 4 : 3;
      return fmt::format("{:.{}g}{}{}", shown, digits, prefix.name, unit);
    }
  }
  return fmt::format("{:.3g}{}{}", value / prefixes.back().factor, prefixes.back().name, unit);
}

}  // namespace

Nanoseconds to_nanoseconds(Seconds t) {
  double amount = t.value * 1e9;
  if (!(std::abs(amount) < 9.2e18))  // NaN too
    throw Error(
        Blame::kCaller,
        fmt::format("time: found {}, expected less than 292 years: some rate is too small, or "
                    "some size or latency too large",
                    to_string(t)));
  return {std::llround(amount)};
}

Bytes bytes_in(BytesPerSecond r, Seconds t) {
  double bytes = r.value * t.value;
  MEDLEY_CHECK(std::abs(bytes) < 9.2e18);
  return {static_cast<int64_t>(std::floor(bytes))};
}

std::string to_string(Bytes b) { return scaled(static_cast<double>(b.value), kBinary); }
std::string to_string(Nanoseconds t) { return to_string(to_seconds(t)); }
std::string to_string(Seconds t) { return t.value == 0 ? "0 s" : scaled(t.value, kTime); }
std::string to_string(Flops f) { return scaled(f.value, kDecimal, "flop"); }
std::string to_string(BytesPerSecond r) { return scaled(r.value, kDecimal, "B/s"); }
std::string to_string(FlopsPerSecond r) { return scaled(r.value, kDecimal, "flop/s"); }
std::string to_string(FlopsPerByte i) { return fmt::format("{:.3g} flop/B", i.value); }

}  // namespace medley
