#pragma once

// Units as types. A quantity is explicit on the way in (`Seconds{1.5}`) and on the way out
// (`.value`). Only physical operations exist: Bytes / BytesPerSecond is Seconds, and Bytes +
// Seconds does not compile. Bytes and simulated time are integers, the rest are doubles.

#include <compare>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace medley {

template <typename Tag, typename Number>
struct Quantity {
  Number value{};

  auto operator<=>(const Quantity&) const = default;

  constexpr Quantity operator-() const { return {-value}; }
  constexpr Quantity& operator+=(Quantity other) { return value += other.value, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value -= other.value, *this; }

  friend constexpr Quantity operator+(Quantity a, Quantity b) { return {a.value + b.value}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return {a.value - b.value}; }
  friend constexpr Quantity operator*(Quantity a, Number factor) { return {a.value * factor}; }
  friend constexpr Quantity operator*(Number factor, Quantity a) { return {a.value * factor}; }
  friend constexpr Quantity operator/(Quantity a, Number divisor) { return {a.value / divisor}; }
  // Returns the ratio a / b, without a unit.
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Bytes = Quantity<struct BytesTag, int64_t>;
using Nanoseconds = Quantity<struct NanosecondsTag, int64_t>;  // simulated and measured time
using Seconds = Quantity<struct SecondsTag, double>;           // estimates
using Flops = Quantity<struct FlopsTag, double>;               // number of operations, not a rate
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;
using FlopsPerByte = Quantity<struct FlopsPerByteTag, double>;

constexpr Seconds operator/(Bytes b, BytesPerSecond r) {
  return {static_cast<double>(b.value) / r.value};
}
constexpr BytesPerSecond operator/(Bytes b, Seconds t) {
  return {static_cast<double>(b.value) / t.value};
}
constexpr FlopsPerByte operator/(Flops f, Bytes b) {
  return {f.value / static_cast<double>(b.value)};
}
constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return {f.value / r.value}; }
constexpr FlopsPerSecond operator/(Flops f, Seconds t) { return {f.value / t.value}; }
constexpr Flops operator*(FlopsPerSecond r, Seconds t) { return {r.value * t.value}; }
constexpr Flops operator*(Seconds t, FlopsPerSecond r) { return r * t; }

constexpr Seconds to_seconds(Nanoseconds t) { return {static_cast<double>(t.value) * 1e-9}; }

// Returns the nearest whole number of nanoseconds.
// Requires: t is finite and shorter than 292 years.
Nanoseconds to_nanoseconds(Seconds t);

// Returns the bytes that r transfers in t, rounded down.
Bytes bytes_in(BytesPerSecond r, Seconds t);

// Returns three or four significant digits: "18.2 GiB", "1.53 ms", "12.5 GB/s", "65.1 Tflop/s".
std::string to_string(Bytes b);
std::string to_string(Nanoseconds t);
std::string to_string(Seconds t);
std::string to_string(Flops f);
std::string to_string(BytesPerSecond r);
std::string to_string(FlopsPerSecond r);
std::string to_string(FlopsPerByte i);

template <typename Tag, typename Number>
std::ostream& operator<<(std::ostream& out, Quantity<Tag, Number> q) {
  return out << to_string(q);
}

}  // namespace medley
