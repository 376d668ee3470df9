#pragma once

// Reads quantities: "300 GB/s", "10 Gbit/s", "3 us", "16 GiB", "312 Tflop/s". A number, optional
// blanks, a unit. Units are case-sensitive; the ambiguous "10 Gb/s" is rejected.

#include <optional>
#include <string>
#include <string_view>

namespace medley {

enum class Dimension { kBandwidth, kDuration, kMemory, kFlopRate };

// Returns the value in bytes/s, seconds, bytes or flop/s; nullopt if `text` is no such quantity.
// The caller checks the sign.
std::optional<double> parse_quantity(std::string_view text, Dimension dimension);
// Returns a suggestion: `a bandwidth such as "300 GB/s" or "10 Gbit/s"`.
std::string_view expected_quantity(Dimension dimension);

}  // namespace medley
