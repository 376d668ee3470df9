#pragma once

// Quantities as people write them: "300 GB/s", "10 Gbit/s", "3 us", "16 GiB", "312 Tflop/s". A
// number, blanks or none, a unit. Strict about case: "10 Gb/s" could mean either of two things and
// is refused.

#include <optional>
#include <string>
#include <string_view>

namespace medley {

enum class Dimension { kBandwidth, kDuration, kMemory, kFlopRate };

// Returns the value in bytes/s, seconds, bytes or flop/s; nothing if `text` is no such quantity.
// The sign is the caller's business.
std::optional<double> parse_quantity(std::string_view text, Dimension dimension);
// Returns what to write instead: `a bandwidth such as "300 GB/s" or "10 Gbit/s"`.
std::string_view expected_quantity(Dimension dimension);

}  // namespace medley
