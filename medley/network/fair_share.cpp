#include "medley/network/fair_share.h"

#include <algorithm>
#include <limits>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr uint64_t kGrowing = 0;                                   // a rate
constexpr uint64_t kStale = std::numeric_limits<uint64_t>::max();  // a share

}  // namespace

FairShares::FairShares(std::vector<uint64_t> capacities)
    : capacities_(std::move(capacities)), place_(capacities_.size(), -1) {}

void FairShares::index(std::span<const SharingFlows> flows) {
  for (const Used& used : used_) place_[at(used.link)] = -1;
  used_.clear();
  size_t total = 0;
  for (const auto& [links, count] : flows) {
    MEDLEY_CHECK(!links.empty() && count > 0);
    total += links.size();
    for (int link : links) {
      int32_t& place = place_[at(link)];
      if (place < 0) {
        place = static_cast<int32_t>(used_.size());
        used_.push_back({link, capacities_[at(link)], 0, kStale, 0, 0});
      }
      Used& used = used_[at(place)];
      used.growing += static_cast<uint64_t>(count);
      ++used.next;
    }
  }
  int32_t first = 0;
  open_.clear();
  for (Used& used : used_) {
    open_.push_back(static_cast<int32_t>(open_.size()));
    const int32_t size = used.next;
    used.first = used.next = first;
    first += size;
  }
  on_link_.resize(total);
  for (size_t flow = 0; flow < flows.size(); ++flow)
    for (int link : flows[flow].links)
      on_link_[at(used_[at(place_[at(link)])].next++)] = static_cast<int32_t>(flow);
}

// Returns the least share and sets full_ to its links.
uint64_t FairShares::find_full() {
  uint64_t least = kStale;
  full_.clear();
  std::erase_if(open_, [&](int32_t place) { return used_[at(place)].growing == 0; });
  for (const int32_t place : open_) {
    Used& used = used_[at(place)];
    if (used.share == kStale) used.share = used.left / used.growing;
    if (used.share > least) continue;
    if (used.share < least) full_.clear();
    least = used.share;
    full_.push_back(place);
  }
  return least;
}

const std::vector<uint64_t>& FairShares::rates(std::span<const SharingFlows> flows) {
  index(flows);
  rates_.assign(flows.size(), kGrowing);
  for (size_t growing = flows.size(); growing > 0;) {
    const uint64_t share = find_full();
    const uint64_t rate = std::max<uint64_t>(share, 1);
    for (const int32_t place : full_) {
      const Used full = used_[at(place)];
      for (int32_t i = full.first; i < full.next; ++i) {
        const size_t flow = at(on_link_[at(i)]);
        if (rates_[flow] != kGrowing) continue;
        rates_[flow] = rate;
        --growing;
        const auto count = static_cast<uint64_t>(flows[flow].count);
        for (int link : flows[flow].links) {
          Used& used = used_[at(place_[at(link)])];
          used.left -= count * share;
          used.growing -= count;
          used.share = kStale;
        }
      }
    }
  }
  return rates_;
}

}  // namespace medley
