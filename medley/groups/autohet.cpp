#include "medley/groups/autohet.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/candidates/candidates.h"
#include "medley/candidates/fine_cuts.h"
#include "medley/candidates/memory_ladder.h"
#include "medley/candidates/port_bounds.h"
#include "medley/groups/group_search.h"
#include "medley/lower/lower.h"
#include "medley/schedule/h1f1b.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

// Amounts of units for which chains are searched: few devices, and many.
constexpr size_t kMostAmounts = 150, kFewAmounts = 40;
constexpr int kMostOfIdentical = 128;  // devices of a pipeline with equal parts of all pools
constexpr double kGap = 0.01;          // relative, per chain
// Divisions that are synthesised. With many devices, the first kMoreRoom get memory for the
// micro-batches of their schedules. kMostPriced are simulated.
constexpr size_t kMostDivisions = 12, kMoreRoom = 3;
constexpr int kMostPriced = 4;
constexpr int kMostSplits = 3;  // of rows
constexpr size_t kSteps = 3 + kMostPriced;

// Returns the divisors of a number, ascending.
std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int d = 1; d <= number; ++d)
    if (number % d == 0) all.push_back(d);
  return all;
}

// Returns units per pool: nodes, or devices of a single node. Units are merged, those of the pool
// with most first, until few amounts remain.
Units units_of(const std::vector<DevicePool>& pools) {
  std::vector<std::vector<int>> ways;
  for (const DevicePool& pool : pools) {
    const auto devices = static_cast<int>(pool.devices.size());
    const int nodes = devices / pool.per_node;
    std::vector<int>& counts = ways.emplace_back(divisors(nodes));
    if (nodes > 1) continue;
    const std::vector<int> sizes = mesh_sizes(pool);
    for (size_t i = sizes.size() - 1; i-- > 0;) counts.push_back(devices / sizes[i]);
  }
  const auto amounts = [&] {
    size_t product = 1;
    for (const std::vector<int>& way : ways) product *= at(way.back()) + 1;
    return product;
  };
  size_t devices = 0;
  for (const DevicePool& pool : pools) devices += pool.devices.size();
  while (amounts() > (devices > at(kMostInDetail) ? kFewAmounts : kMostAmounts)) {
    const auto most =
        std::ranges::max_element(ways, {}, [](const auto& way) { return way.back(); });
    if (most->size() == 1) break;
    most->pop_back();
  }
  Units units;
  for (const std::vector<int>& way : ways) units.push_back(way.back());
  return units;
}

// Returns the same part of each pool for `pipelines` identical pipelines; nullopt if that divides a
// node's devices unevenly or cuts a node.
std::optional<Units> part_of_all(const std::vector<DevicePool>& pools, int pipelines) {
  Units amount;
  for (const DevicePool& pool : pools) {
    const auto devices = static_cast<int>(pool.devices.size());
    const int nodes = devices / pool.per_node;
    if ((nodes > 1 ? nodes : devices) % pipelines != 0) return std::nullopt;
    amount.push_back(devices / pipelines);
  }
  return amount;
}

// Returns all whole numbers of units of each pool, in devices, and for coarse units the parts of
// identical pipelines; none if there are too many.
std::vector<Units> amounts_of(const std::vector<DevicePool>& pools) {
  const Units units = units_of(pools);
  size_t number = 1;
  for (const int count : units)
    if ((number *= at(count) + 1) > kMostAmounts) return {};
  std::vector<Units> amounts;
  for (size_t n = 1; n < number; ++n) {
    Units& amount = amounts.emplace_back();
    size_t rest = n;
    for (size_t p = 0; p < units.size(); ++p) {
      const size_t ways = at(units[p]) + 1;
      const auto devices = static_cast<int>(pools[p].devices.size());
      amount.push_back(static_cast<int>(rest % ways) * devices / units[p]);
      rest /= ways;
    }
  }
  for (int pipelines = 2; pipelines <= static_cast<int>(kMostIdentical); ++pipelines) {
    std::optional<Units> part = part_of_all(pools, pipelines);
    if (part && std::accumulate(part->begin(), part->end(), 0) <= kMostOfIdentical &&
        std::ranges::find(amounts, *part) == amounts.end())
      amounts.push_back(std::move(*part));
  }
  return amounts;
}

// Returns the search's request without micro-batches.
GroupRequest group_request(const Request& request,
                           const std::vector<DevicePool>& pools,
                           const CandidatePlaces& places,
                           int layers) {
  GroupRequest groups;
  groups.layers = layers;
  groups.layers_of_block = kLayersOfChains.per_block;
  groups.pools = places.pools;
  groups.sums.gradients = places.gradients;
  groups.sums.links = places.links;
  groups.amounts = amounts_of(pools);
  groups.rows = request.global_batch;
  groups.least = work_bound(request);
  groups.gap = kGap;
  groups.slower = kSumsOff / 100.0;
  groups.faster_than = request.faster_than;
  groups.step_gap = request.gap;
  groups.is_over = request.listener.is_over;
  for (const DevicePool& pool : pools) {
    Request alone = request;
    alone.devices = names_of(request.cluster, pool.devices);
    groups.speeds.push_back(1.0 / static_cast<double>(work_bound(alone).value) /
                            static_cast<double>(pool.devices.size()));
    groups.sums.devices.push_back(static_cast<int>(pool.devices.size()));
    groups.sums.per_node.push_back(pool.per_node);
  }
  return groups;
}

// Returns how many groups of kMostInDetail devices there are, at least 1.
int pipelines_of(size_t devices) { return std::max(1, static_cast<int>(devices) / kMostInDetail); }

class AutoHet {
 public:
  explicit AutoHet(const Request& request)
      : request_(request),
        pools_(pools_of(request)),
        stages_(stages_of(request, kLayersOfChains)),
        synthesis_(*stages_),
        candidates_(request, pools_, synthesis_),
        places_(candidates_.places()),
        counts_(microbatch_counts(request, pipelines_of(devices_of(request).size()))),
        search_(group_request(request, pools_, places_, static_cast<int>(places_.layers.size()))) {}

  Outcome run() {
    if (devices_of(request_).size() < 2 || request_.global_batch < 2) return one_pipeline();
    if (!search_.counts_amounts() && request_.faster_than) {
      prove(request_, work_bound(request_));
      return Infeasible{fmt::format(
          "the devices are {} pools: several pipelines on so many take long to find, and a plan is "
          "known",
          pools_.size())};
    }
    find_columns();
    if (search_.step() && search_.counts_amounts() && search_.is_small() && !search_.enough()) {
      search_.search_at_prices();
      search_.improve();
    }
    const Nanoseconds least = search_.bound();
    prove(request_, least);
    const std::vector<Division> divisions = search_.divisions(kMostDivisions);
    if (divisions.empty()) return request_.faster_than ? none_is_faster() : one_pipeline();
    report(request_, "autohet: stages as exact_stages", 2, kSteps);
    std::vector<PlanCandidate> all;
    for (const Division& division : divisions) all.push_back(candidate(division.columns));
    std::erase_if(all, [&](const PlanCandidate& each) { return cannot_win(places_, each); });
    candidates_.trials().solve(all);
    for (PlanCandidate& each : all) make_room(candidates_.trials(), each);
    const size_t more = search_.is_large() ? kMoreRoom : 0;
    for (size_t i = 0; i < std::min(all.size(), more); ++i)
      make_more_room(candidates_.trials(), all[i]);
    for_each_in_parallel(all.size(), [&](size_t i) { all[i] = balanced(all[i]); });
    candidates_.add(all);
    candidates_.choose(kMostPriced, [&](int candidate) {
      report(request_, "autohet: simulating", at(4 + candidate), kSteps);
    });
    candidates_.join_axes();
    if (candidates_.timed().empty() && request_.faster_than) return none_is_faster();
    Outcome found = best_with_finer_cuts(request_, pools_, candidates_, least);
    return std::holds_alternative<Plan>(found) ? found : one_pipeline();
  }

 private:
  static Outcome none_is_faster() {
    return Infeasible{"no two pipelines are predicted to be faster than what is known"};
  }

  // Used without devices, rows or memory for two.
  Outcome one_pipeline() const {
    Outcome found = request_.ask("harp");
    if (Plan* plan = std::get_if<Plan>(&found)) plan->strategy = request_.strategy;
    return found;
  }

  StageConfig config(int64_t count) const {
    return {places_.rows(count), count, 0, StageStyle::kBest};
  }

  // Begins with many rows per micro-batch, as harp does, then tries fewer and more while that
  // helps.
  void find_columns() {
    const size_t start = counts_.size() * 2 / 3;
    for (size_t i = start; i < counts_.size() && find_columns(counts_[i]); ++i) {
    }
    for (size_t i = start; i > 0 && find_columns(counts_[i - 1]); --i) {
    }
  }

  // Returns whether divisions improved, or none exists yet.
  bool find_columns(int64_t count) {
    report(request_, fmt::format("autohet: chains of {} micro-batches", count), 1, kSteps);
    if (search_.enough()) return false;
    const std::optional<Nanoseconds> before = search_.step();
    // Unpriced options that keep everything come first: they show which stages to skip, unless a
    // known step does.
    if (!before && !request_.faster_than) add_columns(count, {});
    add_columns(count, search_.longest_stage(count));
    if (!search_.step()) return !request_.faster_than;
    return !before || *search_.step() < *before;
  }

  // `closer`: slower stages per micro-batch are not refined; 0: none are.
  void add_columns(int64_t count, Nanoseconds closer) {
    std::vector<std::pair<StageMesh, StageConfig>> uses;
    std::map<std::pair<int, int>, StageOptionTable*> offers;  // [pool, devices]
    for (int p = 0; p < static_cast<int>(pools_.size()); ++p)
      for (const int size : places_.pools[at(p)].sizes) {
        const StageMesh mesh = places_.mesh({0, 0, p, size});
        uses.emplace_back(mesh, config(count));
        offers[{p, size}] = &synthesis_.offers(mesh, config(count));
      }
    synthesis_.solve_layers(uses, closer);
    const auto options = [this, offers = std::move(offers), closer](const StageRange& range) {
      return synthesis_.options(
          range.begin, range.end, *offers.at({range.pool, range.devices}), closer);
    };
    const int64_t rows = places_.rows(count);
    search_.add({static_cast<int>(count), places_.cuts(rows), options, synthesis_.like()},
                rows,
                closer > Nanoseconds{});
  }

  PlanCandidate candidate(const std::vector<int>& columns) const {
    const RowSplit split = split_rows(search_.columns(columns), request_.global_batch);
    PlanCandidate candidate;
    for (size_t i = 0; i < columns.size(); ++i) {
      const GroupSearch::Chain& chain = search_.chain(columns[i]);
      PipelineCandidate& pipeline = candidate.pipelines.emplace_back();
      pipeline.microbatches = split.shares[i].microbatches;
      pipeline.rows = split.shares[i].rows;
      for (const PipelineStage& stage : chain.plan.stages) {
        pipeline.stages.push_back(stage.range);
        pipeline.configs.push_back(
            StageSynthesis::config_of(stage.option, config(chain.count), stage.in_flight));
      }
    }
    return candidate;
  }

  // Returns the candidate with rows by the timer for stages synthesised as wholes.
  PlanCandidate balanced(PlanCandidate candidate) {
    for (int i = 0; i < kMostSplits; ++i) {
      const std::optional<std::vector<PipelinePlan>> plans =
          candidates_.trials().exact_stages(candidate);
      if (!plans) return candidate;
      std::vector<Column> columns;
      for (size_t p = 0; p < plans->size(); ++p)
        columns.push_back(column_of((*plans)[p], candidate.pipelines[p].configs[0].rows));
      const RowSplit split = split_rows(columns, request_.global_batch);
      bool same = true;
      for (size_t p = 0; p < plans->size(); ++p) {
        PipelineCandidate& pipeline = candidate.pipelines[p];
        const auto& [microbatches, rows] = split.shares[p];
        same &= pipeline.microbatches == microbatches && pipeline.rows == rows;
        pipeline.microbatches = microbatches;
        pipeline.rows = rows;
      }
      if (same) break;
    }
    return candidate;
  }

  // The timer's time of one more micro-batch is used for all.
  static Column column_of(const PipelinePlan& plan, int64_t rows) {
    const Nanoseconds step = turns_of(plan).step;
    PipelinePlan more = plan;
    more.microbatches += plan.microbatches;
    const Nanoseconds twice = turns_of(more).step;
    const Nanoseconds period =
        std::max(Nanoseconds{1}, Nanoseconds{(twice - step).value / plan.microbatches});
    const Nanoseconds fill = step - period * (plan.microbatches - 1);
    return {{}, rows, fill, period};
  }

  const Request& request_;
  const std::vector<DevicePool> pools_;
  const std::shared_ptr<StageSynthesis> stages_;
  StageSynthesis& synthesis_;
  CandidateSet candidates_;
  const CandidatePlaces& places_;
  const std::vector<int64_t> counts_;  // numbers of micro-batches
  GroupSearch search_;
};

}  // namespace

Outcome autohet(const Request& request) {
  if (const std::string& meet = request.cache.analysis->coupling; !meet.empty())
    return Infeasible{fmt::format("{}: several pipelines are not exact", meet)};
  if (const std::string why = why_one_pipeline(request.graph); !why.empty())
    return Infeasible{fmt::format("several pipelines are not possible, since {}", why)};
  return AutoHet(request).run();
}

}  // namespace medley
