#include "medley/lower/owned_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/plan/owners.h"

namespace medley {
namespace {

// A stage that updates a share.
struct Owner {
  size_t stage = 0;
  FactorSizes factors;
  Placement update;  // place in the mesh
};

// An owner's factor: `size` indices, of `inner` neighbours each.
struct KnownFactor {
  int position = 0;
  int64_t size = 1, inner = 1;
  int64_t span() const { return size * inner; }
};

std::vector<KnownFactor> known_factors(const FactorSizes& sizes) {
  std::vector<KnownFactor> factors;
  int64_t inner = 1;
  for (size_t f = sizes.size(); f-- > 0;) {
    factors.push_back({static_cast<int>(f), sizes[f], inner});
    inner *= sizes[f];
  }
  return {factors.rbegin(), factors.rend()};
}

// One factor in all owners, and the pipelines' cuts of it.
struct SharedCut {
  std::vector<KnownFactor> factors;  // [owner]
  int64_t unit = 1;                  // neighbours that no owner cuts
  std::vector<int64_t> lengths;      // [pipeline] in units
};

class ParameterDivision {
 public:
  ParameterDivision(const std::vector<DecidedStage>& stages,
                    const std::string& parameter,
                    const Owners::Division& owners,
                    const std::vector<Owner>& all)
      : stages_(stages), parameter_(parameter), owners_(owners), all_(all) {}

  // Returns [owner] shares.
  std::vector<OwnedShare> run() const {
    std::optional<SharedCut> best;
    for (const KnownFactor& factor : known_factors(all_[0].factors)) {
      std::optional<SharedCut> division = divide(factor);
      if (division && (!best || most(*division) < most(*best))) best = std::move(division);
    }
    if (!best) refuse();
    std::vector<OwnedShare> shares;
    for (size_t i = 0; i < all_.size(); ++i) {
      const auto p = stages_[all_[i].stage].pipeline;
      const int64_t begin =
          std::accumulate(best->lengths.begin(), best->lengths.begin() + p, int64_t{0});
      const int64_t scale = best->unit / best->factors[i].inner;
      shares.push_back(
          {best->factors[i].position, {begin * scale, (begin + best->lengths[at(p)]) * scale}});
    }
    return shares;
  }

 private:
  // Returns nothing unless all owners know the factor and it can be cut in this way.
  std::optional<SharedCut> divide(const KnownFactor& first) const {
    SharedCut division;
    for (const Owner& owner : all_) {
      const std::vector<KnownFactor> known = known_factors(owner.factors);
      const auto same = std::ranges::find(known, first.span(), &KnownFactor::span);
      if (same == known.end()) return std::nullopt;
      division.factors.push_back(*same);
      division.unit = std::lcm(division.unit, same->inner);
    }
    if (first.span() % division.unit != 0) return std::nullopt;
    const int64_t units = first.span() / division.unit;
    if (owners_.part.lengths.empty()) {
      division.lengths = apportion(units, owners_.part.shares);
      return division;
    }
    const auto& lengths = owners_.part.lengths;
    const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    for (int64_t length : lengths) {
      if (multiply(length, units) % sum != 0) return std::nullopt;
      division.lengths.push_back(length * units / sum);
    }
    return division;
  }

  // Returns a device's largest owned part, relative to the tensor and its pipeline's share.
  double most(const SharedCut& division) const {
    const auto units = static_cast<double>(division.factors[0].span() / division.unit);
    double most = 0;
    for (size_t i = 0; i < all_.size(); ++i) {
      const DecidedStage& stage = stages_[all_[i].stage];
      double own = static_cast<double>(division.lengths[at(stage.pipeline)]) / units /
                   owners_.share(at(stage.pipeline));
      for (size_t axis = 0; axis < all_[i].update.size(); ++axis)
        if (all_[i].update[axis].cuts(division.factors[i].position))
          own *= static_cast<double>(stage.mesh[axis]);
      most = std::max(most, own);
    }
    return most;
  }

  [[noreturn]] void refuse() const {
    std::vector<int64_t> sizes;
    for (const KnownFactor& factor : known_factors(all_[0].factors)) sizes.push_back(factor.size);
    throw Error(Blame::kCaller,
                fmt::format("plan: owners[\"{}\"]: found \"{}\", expected a part that divides one "
                            "of the factors {} of \"{}\" as all pipelines know it",
                            owners_.pattern,
                            owners_.part.name,
                            fmt::join(sizes, ", "),
                            parameter_));
  }

  const std::vector<DecidedStage>& stages_;
  const std::string& parameter_;
  const Owners::Division& owners_;
  const std::vector<Owner>& all_;
};

std::map<std::string, std::vector<Owner>> find_owners(const std::vector<DecidedStage>& stages) {
  std::map<std::string, std::vector<Owner>> owners;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Completed& completed = stages[s].completed;
    const Graph& graph = completed.prepared->graph;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      const Output& output = graph.outputs[i];
      if (output.kind != OutputKind::kGradient ||
          !completed.prepared->updated.shares.contains(output.name))
        continue;
      owners[output.name].push_back(
          {s, constant_factors(*completed.factors, output.value), completed.assignment.stored[i]});
    }
  }
  return owners;
}

}  // namespace

std::vector<OwnedShares> divide_updates(const std::vector<DecidedStage>& stages, const Plan& plan) {
  std::vector<OwnedShares> shares(stages.size());
  const Owners owners(plan);
  for (const auto& [parameter, all] : find_owners(stages)) {
    // A single owner has the whole value, even without factors.
    if (all.size() == 1) continue;
    const Owners::Division division = *owners.division(parameter);
    const std::vector<OwnedShare> own = ParameterDivision(stages, parameter, division, all).run();
    for (size_t i = 0; i < all.size(); ++i) shares[all[i].stage][parameter] = own[i];
  }
  return shares;
}

}  // namespace medley
