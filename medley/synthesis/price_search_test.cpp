#include "medley/synthesis/price_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

// A search whose plans fit from a price on.
struct Asked {
  double enough = 0;
  double slow_from = 0;  // price from which misfits are slow; 0: never
  std::vector<double> prices{};
  std::optional<double> last{};

  bool find() {
    return find_price(last, [&](double price) {
      prices.push_back(price);
      const bool fits = price >= enough;
      return AtPrice{fits, !fits && slow_from > 0 && price >= slow_from};
    });
  }
};

TEST(PriceSearch, FindsThePriceToAFactorOfTwo) {
  for (const double enough : {0.002, 0.1, 3.0, 700.0}) {
    Asked asked{.enough = enough};
    EXPECT_TRUE(asked.find());
    double least = 1e9;
    for (const double price : asked.prices)
      if (price >= enough) least = std::min(least, price);
    EXPECT_LE(least, 2 * enough);
  }
}

// It tries no other price.
TEST(PriceSearch, GivesUpWhereNotEvenTheLeastBytesFit) {
  Asked asked{.enough = 1e5};
  EXPECT_FALSE(asked.find());
  EXPECT_THAT(asked.prices, ElementsAre(kMostBytePrice));
}

TEST(PriceSearch, BeginsWithWhatWasEnoughTheLastTime) {
  Asked asked{.enough = 3};
  EXPECT_TRUE(asked.find());
  const size_t before = asked.prices.size();
  asked.prices.clear();
  EXPECT_TRUE(asked.find());
  EXPECT_EQ(asked.prices[0], *asked.last);
  EXPECT_LT(asked.prices.size(), before);
}

// A higher price would only slow plans down.
TEST(PriceSearch, EndsWhereWhatDoesNotFitIsSlowAlready) {
  Asked asked{.enough = 100, .slow_from = 0.01};
  EXPECT_TRUE(asked.find());
  EXPECT_FALSE(asked.last);
  EXPECT_THAT(asked.prices, SizeIs(3));
}

}  // namespace
}  // namespace medley
