#include "medley/chains/pipeline_settle.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/period.h"

namespace medley::pipeline {

void verify(const PipelineRequest& request, size_t most_pools) {
  const auto require = [](bool holds, std::string_view what) {
    if (!holds) throw Error(Blame::kCaller, fmt::format("pipeline: {}", what));
  };
  require(request.layers >= 1, "has no layers");
  require(!request.pools.empty() && request.pools.size() <= most_pools,
          fmt::format("needs 1 to {} pools", most_pools));
  require(!request.microbatches.empty(), "has no number of micro-batches");
  require(request.links.size() == request.pools.size(), "needs a row of links for each pool");
  for (size_t p = 0; p < request.pools.size(); ++p) {
    const PipelinePool& pool = request.pools[p];
    require(request.links[p].size() == request.pools.size(), "needs a link for each pair of pools");
    require(pool.devices >= 1, fmt::format("pool {} has no devices", pool.name));
    require(pool.devices <= kMostCountedDevices,
            fmt::format("pool {} has {} devices, expected at most {}",
                        pool.name,
                        pool.devices,
                        kMostCountedDevices));
    require(!pool.sizes.empty() && std::ranges::min(pool.sizes) >= 1,
            fmt::format("pool {} has no sizes of meshes", pool.name));
  }
  for (const MicrobatchChoice& choice : request.microbatches) {
    require(choice.count >= 1 && choice.count <= 1 << 20, "needs 1 to 2^20 micro-batches");
    require(choice.cuts.size() + 1 == at(request.layers),
            "needs the bytes of one cut fewer than layers");
    require(choice.like.empty() || choice.like.size() == at(request.layers),
            "says of each layer, or of none, which are equal");
  }
}

PipelinePlan plan_of(const Table& table, int choice, const Chain& chain) {
  PipelinePlan plan;
  plan.choice = choice;
  plan.microbatches = table.microbatches();
  int end = 0;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    const Option& o = *chain.stages[i];
    const int begin = end;
    end += o.layers;
    PipelineStage stage;
    stage.range = {begin, end, o.pool, table.sizes(o.pool)[at(o.size)]};
    stage.option = table.offered(o);
    stage.room = static_cast<int>(std::min<int64_t>(o.room, plan.microbatches));
    plan.stages.push_back(stage);
    if (i + 1 == chain.stages.size()) continue;
    const int next = chain.stages[i + 1]->pool;
    const bool comes_back =
        next != o.pool && std::any_of(chain.stages.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                      chain.stages.end(),
                                      [&](const Option* behind) { return behind->pool == o.pool; });
    plan.boundaries.push_back(comes_back ? table.crossing_back(o.pool, next, end)->times
                                         : table.crossing(o.pool, next, end)->times);
  }
  if (chain.stages.size() > 1)
    plan.exchange = {table.exchange(chain.stages.front()->pool, chain.stages.back()->pool)};
  return plan;
}

int64_t cost_of(const Chain& chain) {
  int64_t most = 0;
  for (const Option* stage : chain.stages) most = std::max(most, stage->time - stage->fill);
  return chain.cost + most - (chain.stages.back()->time - chain.stages.back()->fill);
}

std::vector<int> counts_at(const ScheduleRequest& request, Nanoseconds period) {
  std::vector<int> counts = counts_for_period(period, request.times);
  for (int& count : counts) count = std::min(count, request.times.num_microbatches());
  return counts;
}

void settle(PipelinePlan& plan, int64_t period, int64_t cost) {
  const ScheduleRequest request = schedule_request(plan);
  const auto fits = [&](int64_t p) {
    const std::vector<int> counts = counts_at(request, {p});
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i] > plan.stages[i].room) return false;
    return true;
  };
  int64_t low = 1;
  for (const StageTimes& s : request.times.sizes[0].stages)
    low = std::max(low, (s.forward + s.backward).value);
  for (const BoundaryTimes& b : plan.boundaries)
    low = std::max({low, b.forward.value, b.backward.value});
  period = std::max(low, period);
  while (!fits(period)) period *= 2;
  for (int64_t high = period; low < high;) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(middle))
      high = middle;
    else
      low = middle + 1;
  }
  const std::vector<int> counts = counts_at(request, {low});
  for (size_t i = 0; i < counts.size(); ++i) plan.stages[i].in_flight = counts[i];
  plan.period = {low};
  plan.predicted = {cost + (plan.microbatches - 1) * low};
}

}  // namespace medley::pipeline
