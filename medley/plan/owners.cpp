#include "medley/plan/owners.h"

#include <algorithm>
#include <numeric>

namespace medley {
namespace {

std::vector<double> shares_of(const Part& part) {
  if (!part.shares.empty()) return part.shares;
  return {part.lengths.begin(), part.lengths.end()};
}

}  // namespace

Owners::Owners(const Plan& plan) : plan_(plan), finder_(plan.owners) {}

bool Owners::Division::updates(size_t pipeline, int64_t elements) const {
  const std::vector<double> shares = shares_of(part);
  if (elements > 1) return shares[pipeline] > 0;
  return std::ranges::max_element(shares) - shares.begin() == static_cast<int64_t>(pipeline);
}

double Owners::Division::share(size_t pipeline) const {
  const std::vector<double> shares = shares_of(part);
  return shares[pipeline] / std::accumulate(shares.begin(), shares.end(), 0.0);
}

std::optional<Owners::Division> Owners::division(const std::string& parameter) const {
  if (plan_.owners.empty()) return std::nullopt;
  const ChoiceFinder::Choice* entry = finder_.find_entry(parameter);
  if (!entry || entry->second == kAllOwners) return std::nullopt;
  if (entry->second == kEven)
    return Division{entry->first,
                    {entry->second, {}, std::vector<double>(plan_.pipelines.size(), 1)}};
  return Division{entry->first, *std::ranges::find(plan_.parts, entry->second, &Part::name)};
}

}  // namespace medley
