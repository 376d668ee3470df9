#include "medley/network/fair_share.h"

#include <limits>

#include "medley/base/error.h"

namespace medley {
namespace {

size_t at(int64_t index) { return static_cast<size_t>(index); }

}  // namespace

FairShares::FairShares(std::vector<double> capacities)
    : capacities_(std::move(capacities)), place_(capacities_.size(), -1) {}

void FairShares::index(std::span<const std::span<const int>> flows) {
  for (const Used& used : used_) place_[at(used.link)] = -1;
  used_.clear();
  size_t total = 0;
  for (const auto& links : flows) {
    MEDLEY_CHECK(!links.empty());
    total += links.size();
    for (int link : links) {
      int32_t& place = place_[at(link)];
      if (place < 0) {
        place = static_cast<int32_t>(used_.size());
        used_.push_back({link, capacities_[at(link)], 0, 0, 0});
      }
      ++used_[at(place)].growing;
    }
  }
  int32_t first = 0;
  for (Used& used : used_) {
    used.first = used.next = first;
    first += used.growing;
  }
  on_link_.resize(total);
  for (size_t flow = 0; flow < flows.size(); ++flow)
    for (int link : flows[flow])
      on_link_[at(used_[at(place_[at(link)])].next++)] = static_cast<int32_t>(flow);
}

size_t FairShares::tightest(double& share) const {
  size_t found = 0;
  share = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i].growing == 0) continue;
    const double each = used_[i].left / used_[i].growing;
    if (each < share) share = each, found = i;
  }
  return found;
}

const std::vector<double>& FairShares::rates(std::span<const std::span<const int>> flows) {
  index(flows);
  rates_.assign(flows.size(), -1);
  for (size_t open = flows.size(); open > 0;) {
    double share = 0;
    const Used full = used_[tightest(share)];
    for (int32_t i = full.first; i < full.next; ++i) {
      const size_t flow = at(on_link_[at(i)]);
      if (rates_[flow] >= 0) continue;
      rates_[flow] = share;
      --open;
      for (int link : flows[flow]) {
        Used& used = used_[at(place_[at(link)])];
        used.left -= share;
        --used.growing;
      }
    }
  }
  return rates_;
}

std::vector<double> max_min_rates(const std::vector<double>& capacities,
                                  const std::vector<const Links*>& flows) {
  std::vector<std::span<const int>> spans;
  spans.reserve(flows.size());
  for (const Links* links : flows) spans.emplace_back(*links);
  return FairShares(capacities).rates(spans);
}

}  // namespace medley
