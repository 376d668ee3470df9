#include "medley/network/fair_share.h"

#include <gmock/gmock.h>

#include <random>

namespace medley {
namespace {

using ::testing::ElementsAre;

std::vector<double> rates_of(const std::vector<double>& capacities,
                             const std::vector<Links>& flows) {
  std::vector<const Links*> pointers;
  for (const Links& links : flows) pointers.push_back(&links);
  return max_min_rates(capacities, pointers);
}

// The example of the header: b and c halve the narrow link, a takes what b leaves of the wide one.
TEST(MaxMinRates, FillsProgressively) {
  EXPECT_THAT(rates_of({10, 4}, {{0}, {0, 1}, {1}}), ElementsAre(8, 2, 2));
  EXPECT_THAT(rates_of({9}, {{0}, {0}, {0}}), ElementsAre(3, 3, 3));
  EXPECT_THAT(rates_of({5}, {}), ElementsAre());
}

// Definition: no link is overfull, and every flow is on a full link on which no other flow is
// faster.
TEST(MaxMinRates, IsMaxMinFairOnRandomNetworks) {
  std::mt19937 random(3);
  for (int run = 0; run < 500; ++run) {
    std::vector<double> capacities(1 + random() % 8);
    for (double& capacity : capacities) capacity = 1 + static_cast<double>(random() % 100);
    std::vector<Links> flows(1 + random() % 10);
    for (auto& links : flows)
      while (links.empty())
        for (size_t link = 0; link < capacities.size(); ++link)
          if (random() % 3 == 0) links.push_back(static_cast<int>(link));
    const std::vector<double> rates = rates_of(capacities, flows);
    std::vector<double> load(capacities.size(), 0), fastest(capacities.size(), 0);
    for (size_t i = 0; i < flows.size(); ++i)
      for (int link : flows[i]) {
        load[static_cast<size_t>(link)] += rates[i];
        fastest[static_cast<size_t>(link)] = std::max(fastest[static_cast<size_t>(link)], rates[i]);
      }
    for (size_t link = 0; link < capacities.size(); ++link)
      EXPECT_LE(load[link], capacities[link] * (1 + 1e-12));
    for (size_t i = 0; i < flows.size(); ++i) {
      bool held_back = false;
      for (int link : flows[i]) {
        const size_t l = static_cast<size_t>(link);
        held_back |= load[l] > capacities[l] * (1 - 1e-12) && rates[i] > fastest[l] * (1 - 1e-12);
      }
      EXPECT_TRUE(held_back) << "flow " << i;
    }
  }
}

}  // namespace
}  // namespace medley
