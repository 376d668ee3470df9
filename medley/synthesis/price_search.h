#pragma once

// The price on memory at which a plan fits, found by asking at a few prices. Knows nothing of
// plans.

#include <functional>
#include <optional>

namespace medley {

struct AtPrice {
  bool fits = false;
  bool slow = false;  // nothing that fits is of use: a higher price makes slower plans
};

// Asks for the smallest price at which something fits, to a factor of two, until what does not fit
// is slow already. Begins with `last`, which was enough the last time and most likely is about
// right, and sets it. Returns false if not even at kMostBytePrice something fits.
bool find_price(std::optional<double>& last, const std::function<AtPrice(double price)>& ask);

}  // namespace medley
