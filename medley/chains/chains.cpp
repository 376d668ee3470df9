#include "medley/chains/chains.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/chains/chain_search.h"
#include "medley/chains/periods.h"
#include "medley/chains/pipeline_settle.h"

namespace medley {

using namespace pipeline;

struct Chains::Tables {
  PipelineRequest request;
  Table table;
  DeviceUse use;  // with prices

  std::optional<PricedChain> found(const Chain& chain) const {
    if (chain.stages.empty()) return std::nullopt;
    PricedChain priced{
        plan_of(table, 0, chain), std::vector<int>(at(table.pools()), 0), chain.cost};
    for (const PipelineStage& stage : priced.plan.stages)
      priced.devices[at(stage.range.pool)] += stage.range.devices;
    return priced;
  }

  // A search without device counts does not know later stages on a shared port. Returns how much
  // longer round trips are.
  int64_t unknown_trips(const PipelinePlan& plan) const {
    int64_t longer = 0;
    if (use != DeviceUse::kAny) return longer;
    for (size_t i = 0; i < plan.boundaries.size(); ++i) {
      const StageRange &from = plan.stages[i].range, &to = plan.stages[i + 1].range;
      longer += plan.boundaries[i].round_trip().value -
                table.crossing(from.pool, to.pool, from.end)->round_trip;
    }
    return longer;
  }
};

Chains::Chains(const PipelineRequest& request) {
  verify(request, kMostPricedPools);
  MEDLEY_CHECK(request.microbatches.size() == 1);
  const Table table(request, 0, false);
  const bool counts = request.use.value_or(use_of(table)) == DeviceUse::kCounted;
  tables_ =
      std::make_unique<Tables>(request, table, counts ? DeviceUse::kCounted : DeviceUse::kAny);
}

Chains::~Chains() = default;

std::vector<PipelinePlan> Chains::on(const std::vector<int>& devices,
                                     int microbatches,
                                     Nanoseconds below,
                                     int cut_every) const {
  MEDLEY_CHECK(devices.size() <= kMostCountedPools);
  PipelineRequest request = tables_->request;
  request.below = below;
  request.cut_every = cut_every;
  PipelinePlans found;
  Periods(request, tables_->table.on(devices, microbatches), 0, found, false).run();
  return found.plans;
}

std::optional<PricedChain> Chains::at_period(Nanoseconds period,
                                             const Prices& prices,
                                             int64_t below) const {
  MEDLEY_CHECK(period.value >= 1);
  const Chain chain = cheapest_chain(
      tables_->table,
      {.use = tables_->use, .prices = &prices, .below = below, .longest = period.value});
  std::optional<PricedChain> found = tables_->found(chain);
  if (!found) return found;
  int64_t cost = cost_of(chain) + tables_->unknown_trips(found->plan);
  for (size_t pool = 0; pool < prices.size(); ++pool) cost -= prices[pool] * found->devices[pool];
  settle(found->plan, period.value, cost);
  return found;
}

std::optional<PricedChain> Chains::under_any_schedule(int64_t microbatches,
                                                      Nanoseconds step,
                                                      const Prices& prices,
                                                      int64_t below,
                                                      Closeness closeness,
                                                      double* first) const {
  MEDLEY_CHECK(microbatches >= 1);
  return tables_->found(cheapest_chain(tables_->table,
                                       {.use = tables_->use,
                                        .prices = &prices,
                                        .below = below,
                                        .longest = step.value / microbatches,
                                        .microbatches = microbatches,
                                        .step = step.value,
                                        .closeness = closeness},
                                       first));
}

namespace {

// Returns whether some schedule may do `count` micro-batches in the time.
bool may_do(const Table& table,
            const PipelinePlan& plan,
            const std::vector<int64_t>& sums,
            int64_t count,
            Nanoseconds step,
            Closeness closeness) {
  int64_t end = 0, stays = 0;
  for (size_t s = plan.stages.size(); s-- > 0;) {
    const PipelineStage& stage = plan.stages[s];
    const int64_t time = (stage.option.forward + stage.option.backward).value;
    int64_t trip = 0, in_front = 0;
    if (count * time > step.value) return false;
    if (sums[s] > 0 && count * time - stage.option.backward.value + sums[s] > step.value)
      return false;
    if (s < plan.boundaries.size()) {
      const BoundaryTimes& boundary = plan.boundaries[s];
      trip = boundary.round_trip().value;
      in_front = table.in_front((stage.option.forward + boundary.forward + boundary.latency).value,
                                time + trip);
      if (count * std::max(boundary.forward, boundary.backward).value > step.value) return false;
    }
    end = std::max(count * time, end + in_front);
    const int64_t stay = stays + time + trip;
    stays = stay - stage.option.weights.value;
    if (closeness == Closeness::kRough || stage.room >= plan.microbatches) continue;
    if (count * stay > step.value * stage.room) return false;
  }
  const StageOption& first = plan.stages[0].option;
  const int64_t update = first.update.value + std::max<int64_t>(0, sums[0] - first.backward.value);
  const int64_t own = count * (first.forward + first.backward).value;
  return closeness != Closeness::kClose || table.with_update(own, end, update) <= step.value;
}

}  // namespace

int64_t Chains::most_microbatches(const PipelinePlan& plan,
                                  Nanoseconds step,
                                  Closeness closeness) const {
  const auto& sums_at_least = tables_->request.sums_at_least;
  std::vector<int64_t> sums;
  for (const PipelineStage& stage : plan.stages)
    sums.push_back(sums_at_least ? sums_at_least(stage.range).value : 0);
  int64_t low = 0, high = int64_t{1} << 21;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (may_do(tables_->table, plan, sums, middle, step, closeness) ? low : high) = middle;
  }
  return low;
}

Nanoseconds Chains::longest_period() const { return {tables_->table.longest_period()}; }

}  // namespace medley
