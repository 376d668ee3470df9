#include "medley/network/fair_share.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <random>

namespace medley {
namespace {

using ::testing::ElementsAre;

using Links = std::vector<int>;
using Rates = std::vector<uint64_t>;

Rates rates_of(const Rates& capacities, const std::vector<Links>& flows) {
  std::vector<SharingFlows> sharing;
  for (const Links& links : flows) sharing.push_back({links, 1});
  return FairShares(capacities).rates(sharing);
}

// The header's example: b and c halve the narrow link, a takes the rest of the wide one.
TEST(FairShares, FillsProgressively) {
  EXPECT_THAT(rates_of({10, 4}, {{0}, {0, 1}, {1}}), ElementsAre(8, 2, 2));
  EXPECT_THAT(rates_of({9}, {{0}, {0}, {0}}), ElementsAre(3, 3, 3));
  EXPECT_THAT(rates_of({11}, {{0}, {0}, {0}}), ElementsAre(3, 3, 3));
  EXPECT_THAT(rates_of({2}, {{0}, {0}, {0}}), ElementsAre(1, 1, 1));  // no flow stalls
  EXPECT_THAT(rates_of({5}, {}), ElementsAre());
}

struct Random {
  Rates capacities;
  std::vector<Links> flows;
};
Random random_network(std::mt19937& random) {
  Random result;
  result.capacities.resize(1 + random() % 8);
  for (uint64_t& capacity : result.capacities) capacity = (1 + random() % 100) << 30;
  result.flows.resize(1 + random() % 10);
  for (Links& links : result.flows)
    while (links.empty())
      for (size_t link = 0; link < result.capacities.size(); ++link)
        if (random() % 3 == 0) links.push_back(static_cast<int>(link));
  return result;
}

// Checks the definition: no link is overloaded, and every flow is on a full link without a faster
// flow. Rounding down may leave less than one unit per flow of a link.
TEST(FairShares, IsMaxMinFairOnRandomNetworks) {
  std::mt19937 random(3);
  for (int run = 0; run < 500; ++run) {
    const auto [capacities, flows] = random_network(random);
    const Rates rates = rates_of(capacities, flows);
    Rates load(capacities.size(), 0), fastest(capacities.size(), 0);
    for (size_t i = 0; i < flows.size(); ++i)
      for (int link : flows[i]) {
        load[at(link)] += rates[i];
        fastest[at(link)] = std::max(fastest[at(link)], rates[i]);
      }
    for (size_t link = 0; link < capacities.size(); ++link) EXPECT_LE(load[link], capacities[link]);
    for (size_t i = 0; i < flows.size(); ++i) {
      bool held_back = false;
      for (int link : flows[i]) {
        const auto l = at(link);
        held_back |= load[l] + flows.size() > capacities[l] && rates[i] + flows.size() > fastest[l];
      }
      EXPECT_TRUE(held_back) << "flow " << i;
    }
  }
}

// Rates are equal in another order, counted instead of listed, and with flows on other links.
TEST(FairShares, DependsOnlyOnTheFlowsOfALink) {
  std::mt19937 random(4);
  for (int run = 0; run < 500; ++run) {
    const auto [capacities, flows] = random_network(random);
    const auto links = static_cast<int>(capacities.size());
    std::vector<Links> listed = flows;
    std::vector<SharingFlows> counted;
    for (const Links& each : flows) {
      counted.push_back({each, 1 + static_cast<int64_t>(random() % 4)});
      for (int64_t i = 1; i < counted.back().count; ++i) listed.push_back(each);
    }
    const Rates expected = rates_of(capacities, listed);

    std::vector<SharingFlows> backwards(counted.rbegin(), counted.rend());
    std::vector<Links> elsewhere;
    for (const Links& each : flows) {
      Links& moved = elsewhere.emplace_back();
      for (int link : each) moved.push_back(link + links);
    }
    for (const Links& each : elsewhere) backwards.push_back({each, 1});
    Rates twice = capacities;
    twice.insert(twice.end(), capacities.begin(), capacities.end());
    const Rates found = FairShares(twice).rates(backwards);
    for (size_t i = 0; i < flows.size(); ++i)
      EXPECT_EQ(found[flows.size() - 1 - i], expected[i]) << "flow " << i;
  }
}

}  // namespace
}  // namespace medley
