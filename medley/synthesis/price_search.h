#pragma once

// Finds the memory price at which a plan fits by evaluating a few prices. Knows nothing of plans.

#include <functional>
#include <optional>

namespace medley {

struct AtPrice {
  bool fits = false;
  bool slow = false;  // no fitting plan can win: higher prices are slower
};

// Searches the smallest price with a fit, to a factor of two. Stops when a misfit is already slow.
// Starts at `last`, the previous result, and updates it. Returns false if even kMostBytePrice gives
// no fit.
bool find_price(std::optional<double>& last, const std::function<AtPrice(double price)>& ask);

}  // namespace medley
