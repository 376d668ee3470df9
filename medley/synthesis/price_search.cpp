#include "medley/synthesis/price_search.h"

#include <algorithm>
#include <cmath>

#include "medley/synthesis/tuning.h"

namespace medley {

bool find_price(std::optional<double>& last, const std::function<AtPrice(double price)>& ask) {
  bool slow = false;
  const auto fits_at = [&](double price) {
    const AtPrice found = ask(price);
    slow = found.slow;
    return found.fits;
  };
  double low = 0, high = last.value_or(kLeastBytePrice);
  if (last && fits_at(high)) {
    while (high > kLeastBytePrice && low == 0)
      (fits_at(high / kBytePriceStep) ? high : low) = high / kBytePriceStep;
  } else {
    if (slow) return true;
    if (!fits_at(kMostBytePrice)) return false;
    if (last) low = high, high *= kBytePriceStep;
    for (; high < kMostBytePrice && !fits_at(high); high *= kBytePriceStep) {
      if (slow) return true;
      low = high;
    }
  }
  high = std::min(high, kMostBytePrice);
  last = high;
  for (int i = 0; i < 2 && low > 0 && !slow; ++i) {
    const double middle = std::sqrt(low * high);
    (fits_at(middle) ? high : low) = middle;
  }
  return true;
}

}  // namespace medley
