#include "medley/planner/harp.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "medley/base/at.h"
#include "medley/candidates/candidates.h"
#include "medley/candidates/fine_cuts.h"
#include "medley/candidates/port_bounds.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

constexpr int kOfEachCount = 2;     // chains per number of micro-batches
constexpr int kMostPriced = 12;     // candidates synthesised as wholes and simulated
constexpr size_t kFewDevices = 32;  // devices; up to this, stages may use two types
// Optimality gaps of chain searches. Chains are compared by sums over layers, which are less exact.
constexpr double kGap = 0.002, kGapOfMany = 0.01;
constexpr double kPruningGap = 0.1;  // for searches used only for pruning
constexpr size_t kMany = 256;        // devices; above it, closer searches take seconds
constexpr size_t kSteps = 2 + kMostPriced;
constexpr Nanoseconds kNoBound{std::numeric_limits<int64_t>::max()};
// Percent of a step. Both ends use one pool, with others between, if they exchange sooner by this.
constexpr int64_t kMatters = 2;
// Pairs of pools tried as one. Near pools exchange kExchanged fastest.
constexpr size_t kMostMixed = 3;
constexpr Bytes kExchanged{1 << 20};

class Harp {
 public:
  // `known`: step to beat; slower chains are excluded by sums over their layers.
  Harp(const Request& request, std::vector<DevicePool> pools, std::optional<Nanoseconds> known)
      : request_(request),
        pools_(std::move(pools)),
        stages_(stages_of(request, kLayersOfChains)),
        synthesis_(*stages_),
        candidates_(request, pools_, synthesis_),
        places_(candidates_.places()),
        counts_(microbatch_counts(request)),
        known_(known) {
    pipeline_.layers = static_cast<int>(synthesis_.layers().layers.size());
    pipeline_.shared = places_.shared;
    pipeline_.pools = places_.pools;
    pipeline_.links = places_.links;
    pipeline_.candidates = kOfEachCount;
    pipeline_.explain = false;
    pipeline_.gap = devices_of(request).size() > kMany ? kGapOfMany : kGap;
  }

  Outcome run() {
    find_all_chains();
    if (plans_.empty() && known_) add_meshes();
    if (plans_.empty() && request_.faster_than) {
      find_bound();
      prove(request_, least_);
      return none_is_faster();
    }
    if (plans_.empty())
      if (std::optional<Infeasible> no = find_any_chain()) return std::move(*no);
    find_bound();
    prove(request_, least_);
    if (fastest_) {
      try_other_ends();
      add_meshes();
    } else {
      fastest_ = std::ranges::min_element(plans_, {}, &PipelinePlan::predicted)->predicted;
    }
    std::ranges::stable_sort(plans_, {}, &PipelinePlan::predicted);
    plans_.resize(std::min<size_t>(plans_.size(), at(kMostPriced)));
    std::vector<PlanCandidate> all;
    for (const PipelinePlan& plan : plans_)
      if (plan.predicted.value <= fastest_->value * kSumsOff / 100)
        all.push_back(candidate_of(plan));
    std::erase_if(all, [&](const PlanCandidate& each) { return cannot_win(places_, each); });
    if (all.empty()) return none_is_faster();
    report(request_, "harp: stages as exact_stages", 2, kSteps);
    candidates_.add(all);
    move_cuts();
    candidates_.choose(kMostPriced, [&](int candidate) {
      report(request_, "harp: simulating", at(3 + candidate), kSteps);
    });
    candidates_.join_axes();
    return best_with_finer_cuts(request_, pools_, candidates_, least_);
  }

 private:
  static Infeasible none_is_faster() {
    return {"no chain is predicted to be faster than what is known"};
  }

  PlanCandidate candidate_of(const PipelinePlan& plan) const {
    PipelineCandidate candidate{plan.microbatches, {}, {}};
    for (const PipelineStage& stage : plan.stages) {
      candidate.stages.push_back(stage.range);
      candidate.configs.push_back(
          StageSynthesis::config_of(stage.option, config(plan.microbatches), stage.in_flight));
    }
    return {{std::move(candidate)}};
  }

  StageConfig config(int64_t microbatches) const {
    return {places_.rows(microbatches), microbatches, 0, StageStyle::kBest};
  }

  // Limits of a stage's time for a micro-batch.
  struct Limits {
    Nanoseconds closer;   // slower ones are not refined
    Nanoseconds longest;  // slower ones are excluded
  };

  // Predictions are too inexact to rank orders of pools. Adds, for each number of micro-batches,
  // the best chains that end in other pools than the best one.
  void try_other_ends() {
    std::map<int, PipelinePlan> best;  // [microbatches]
    for (const PipelinePlan& plan : plans_)
      if (const auto [known, is_new] = best.try_emplace(plan.microbatches, plan);
          !is_new && plan.predicted < known->second.predicted)
        known->second = plan;
    for (const auto& [count, plan] : best) {
      if (plan.predicted - plan.exchange >= *slow()) continue;
      const Nanoseconds longest = longest_stage(count);
      for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
        if (pool == plan.stages.back().range.pool) continue;
        const std::vector<PipelinePlan> some = chains(count, {longest, longest}, pool);
        plans_.insert(plans_.end(), some.begin(), some.end());
      }
    }
  }

  // Adds one stage on all devices of a pool with few micro-batches, which has no bubble: chains
  // need more micro-batches, so their search begins with more. If no chain is as fast as the known
  // plan, adds mixed pools only; Auto::ask_pools searches the others more closely.
  void add_meshes() {
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool) {
      if (!fastest_ && pools_[at(pool)].speeds.empty()) continue;
      Request alone = request_;
      alone.devices = names_of(request_.cluster, pools_[at(pool)].devices);
      if (work_bound(alone) >= (fastest_ ? *fastest_ : *known_)) continue;
      std::optional<PipelinePlan> best;
      for (size_t i = 0; i < first_tried(); ++i)
        for (PipelinePlan& plan : meshes(pool, counts_[i]))
          if (!best || plan.predicted < best->predicted) best = std::move(plan);
      if (best) plans_.push_back(std::move(*best));
    }
  }

  std::vector<PipelinePlan> meshes(int pool, int64_t count) {
    const PipelinePool& all = places_.pools[at(pool)];
    const StageRange range{0, pipeline_.layers, pool, all.devices};
    const StageMesh mesh = places_.mesh(range);
    const Nanoseconds longest = longest_stage(count);
    synthesis_.solve_layers({{mesh, config(count)}}, longest);
    std::vector<PipelinePlan> plans;
    for (const StageOption& option :
         options(range, synthesis_.offers(mesh, config(count)), {longest, longest})) {
      if (option.persistent + option.saved + option.transient > all.memory) continue;
      PipelinePlan& plan = plans.emplace_back();
      plan.microbatches = static_cast<int>(count);
      plan.stages = {{range, option, 1, 1}};
      plan.predicted = (option.forward + option.backward) * count + option.update;
    }
    return plans;
  }

  size_t first_tried() const { return counts_.size() * 2 / 3; }

  // Returns the predicted time above which chains are no candidates; nullopt if unknown.
  std::optional<Nanoseconds> slow() const {
    std::optional<Nanoseconds> slow;
    if (known_) slow = *known_ * kSumsOff / 100;
    if (fastest_) slow = std::min(*fastest_ * kSumsOff / 100, slow.value_or(kNoBound));
    return slow;
  }
  Nanoseconds longest_stage(int64_t count) const {
    const std::optional<Nanoseconds> slow = this->slow();
    return slow ? std::min(kLongest, Nanoseconds{slow->value / count}) : kLongest;
  }

  // Steps shorten with more micro-batches until their fixed costs exceed the bubble. Begins at a
  // count that is probably large, goes up and then down while it helps.
  void find_all_chains() {
    const size_t start = first_tried();
    for (size_t i = start; i < counts_.size() && find_chains(counts_[i]); ++i) {
    }
    for (size_t i = start; i > 0 && find_chains(counts_[i - 1]); --i) {
    }
  }

  // Returns whether it found a better one, or none is known.
  bool find_chains(int64_t count) {
    report(request_, fmt::format("harp: chains of {} micro-batches", count), 1, kSteps);
    if (fastest_ && is_over(request_)) return false;
    // Unpriced options that keep everything come first: slower ones are skipped.
    if (!slow())
      if (const auto first = chains(count, {{}, kLongest}); !first.empty())
        fastest_ = first.front().predicted;
    const Nanoseconds longest = longest_stage(count);
    const std::vector<PipelinePlan> some = chains(count, {longest, longest});
    const bool had = !plans_.empty();
    const Nanoseconds before = had ? *fastest_ : kNoBound;
    // With a plan to beat, no chain means that none is as fast: one more count is tried.
    if (some.empty()) return !had && (!known_ || count == counts_[first_tried()]);
    plans_.insert(plans_.end(), some.begin(), some.end());
    fastest_ = std::min(fastest_.value_or(kNoBound), some.front().predicted);
    return !had || some.front().predicted < before;
  }

  // `last`: pool of the last stage; -1: any.
  std::vector<PipelinePlan> chains(int64_t count, const Limits& limits, int last = -1) {
    std::vector<std::pair<StageMesh, StageConfig>> uses;
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool)
      for (int size : places_.pools[at(pool)].sizes)
        uses.emplace_back(places_.mesh({0, 0, pool, size}), config(count));
    synthesis_.solve_layers(uses, limits.closer);
    PipelineRequest request = pipeline_;
    request.microbatches = {choice(count, limits)};
    request.last_pool = last;
    if (const auto slow = this->slow()) request.below = *slow;
    request.least_gain = fastest_ ? *fastest_ * kMatters / 100 : kLongest;
    if (limits.closer == Nanoseconds{}) request.gap = kPruningGap;
    std::vector<PipelinePlan> plans = plans_of(request).plans;
    if (limits.closer > Nanoseconds{} && last < 0) {
      // Excluded stages appear in no faster step.
      if (limits.longest < kLongest) least_ = std::min(least_, limits.longest * count);
      bounds_.push_back(request);
      if (!plans.empty()) bounds_.back().below = std::min(request.below, plans.front().predicted);
    }
    if (request.shared > Bytes{} && last < 0) add_others(request, plans);
    for (PipelinePlan& plan : plans) {
      std::vector<StageRange> ranges;
      for (const PipelineStage& stage : plan.stages) ranges.push_back(stage.range);
      // The search knows only the bytes that the ends share.
      const Nanoseconds exchange = places_.exchange(ranges).value_or(kLongest);
      plan.predicted += exchange - plan.exchange;
      plan.exchange = exchange;
    }
    std::ranges::stable_sort(plans, {}, &PipelinePlan::predicted);
    return plans;
  }

  // The ends' exchange is a small part of a step, and predictions are rough: adds chains that are
  // best without it.
  static void add_others(PipelineRequest request, std::vector<PipelinePlan>& plans) {
    request.shared = {};
    for (PipelinePlan& plan : plans_of(request).plans) {
      const bool known = std::ranges::any_of(plans, [&](const PipelinePlan& other) {
        return std::ranges::equal(
            other.stages, plan.stages, {}, &PipelineStage::range, &PipelineStage::range);
      });
      if (!known) plans.push_back(std::move(plan));
    }
  }

  // Returns no bound if there is no plan.
  static PipelinePlans plans_of(const PipelineRequest& request) {
    auto found = plan_pipeline(request);
    if (auto* plans = std::get_if<PipelinePlans>(&found)) return std::move(*plans);
    return {.plans = {}, .lower_bound = {}, .step_bound = kNoBound};
  }

  MicrobatchChoice choice(int64_t count, const Limits& limits) {
    std::map<std::pair<int, int>, StageOptionTable*> offers;  // [pool, devices]
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool)
      for (int size : places_.pools[at(pool)].sizes)
        offers[{pool, size}] = &synthesis_.offers(places_.mesh({0, 0, pool, size}), config(count));
    return {static_cast<int>(count),
            places_.cuts(places_.rows(count)),
            [this, offers = std::move(offers), limits](const StageRange& range) {
              return options(range, *offers.at({range.pool, range.devices}), limits);
            },
            synthesis_.like()};
  }

  std::vector<StageOption> options(const StageRange& range,
                                   StageOptionTable& offers,
                                   const Limits& limits) {
    std::vector<StageOption> options =
        synthesis_.options(range.begin, range.end, offers, limits.closer);
    std::erase_if(options, [&](const StageOption& option) {
      return option.forward + option.backward > limits.longest;
    });
    return options;
  }

  // Bounds all chains of those searches. The fastest come first, because their bounds may suffice
  // for the rest.
  void find_bound() {
    std::ranges::stable_sort(bounds_, {}, &PipelineRequest::below);
    for (const PipelineRequest& request : bounds_)
      least_ = std::min(least_, closer_step_bound(request, least_));
    bounds_.clear();
  }

  // Searches chains of all numbers of micro-batches together, without a limit. Returns the reason
  // if none exists.
  std::optional<Infeasible> find_any_chain() {
    PipelineRequest request = pipeline_;
    request.explain = true;
    for (int64_t count : counts_)
      request.microbatches.push_back(choice(count, {kLongest, kLongest}));
    auto found = plan_pipeline(request);
    if (auto* no = std::get_if<Infeasible>(&found))
      return synthesis_.failure().empty() ? std::move(*no) : Infeasible{synthesis_.failure()};
    plans_ = std::move(std::get<PipelinePlans>(found).plans);
    fastest_ = std::ranges::min_element(plans_, {}, &PipelinePlan::predicted)->predicted;
    return std::nullopt;
  }

  // Moves a cut next to the slowest stage of the fastest candidate, so that it loses a layer, while
  // the timer predicts a gain.
  void move_cuts() {
    const std::vector<CandidateSet::Timed>& timed = candidates_.timed();
    while (!timed.empty()) {
      const Nanoseconds before = timed.front().time;
      const PipelineCandidate from = timed.front().candidate.pipelines.front();
      const size_t slowest = candidates_.trials().slowest_stage(from);
      const StageRange& range = from.stages[slowest];
      if (range.end - range.begin < 2) return;
      std::vector<PlanCandidate> moved;
      if (slowest > 0) {
        PipelineCandidate& to = moved.emplace_back(PlanCandidate{{from}}).pipelines.front();
        ++to.stages[slowest].begin;
        ++to.stages[slowest - 1].end;
      }
      if (slowest + 1 < from.stages.size()) {
        PipelineCandidate& to = moved.emplace_back(PlanCandidate{{from}}).pipelines.front();
        --to.stages[slowest].end;
        --to.stages[slowest + 1].begin;
      }
      candidates_.add(moved);
      if (timed.front().time == before) return;
    }
  }

  const Request& request_;
  const std::vector<DevicePool> pools_;
  const std::shared_ptr<StageSynthesis> stages_;
  StageSynthesis& synthesis_;
  CandidateSet candidates_;
  const CandidatePlaces& places_;
  const std::vector<int64_t> counts_;  // numbers of micro-batches
  const std::optional<Nanoseconds> known_;
  PipelineRequest pipeline_;  // without numbers of micro-batches
  std::vector<PipelinePlan> plans_;
  std::optional<Nanoseconds> fastest_;  // predicted
  Nanoseconds least_ = kNoBound;        // bound of all chains, except later ones
  std::vector<PipelineRequest> bounds_;
};

// Returns the pairs of pools that exchange some bytes fastest, with the time, at most kMostMixed.
std::vector<std::pair<Nanoseconds, std::pair<size_t, size_t>>> near_pools(
    const Request& request, const std::vector<DevicePool>& pools) {
  const auto links = links_of(pools, request.costs->topology());
  std::vector<std::pair<Nanoseconds, std::pair<size_t, size_t>>> near;
  for (size_t a = 0; a < pools.size(); ++a)
    for (size_t b = a + 1; b < pools.size(); ++b)
      if (links[a][b]) near.push_back({occupied(*links[a][b], kExchanged), {a, b}});
  std::ranges::sort(near);
  near.resize(std::min(near.size(), kMostMixed));
  return near;
}

// Returns the pools with two of them merged, at the end. `speeds`: of each device.
std::vector<DevicePool> with_mixed(std::vector<DevicePool> pools,
                                   std::pair<size_t, size_t> pair,
                                   const std::map<int, double>& speeds) {
  DevicePool one = mixed(pools[pair.first], pools[pair.second], speeds);
  pools.erase(pools.begin() + static_cast<std::ptrdiff_t>(pair.second));
  pools.erase(pools.begin() + static_cast<std::ptrdiff_t>(pair.first));
  pools.push_back(std::move(one));
  return pools;
}

// Searches faster plans with stages on devices of two pools, then of three and more.
Plan with_mixed_stages(Request request, std::vector<DevicePool> pools, Plan best) {
  const std::vector<int> devices = devices_of(request);
  if (pools.size() < 2 || devices.size() > kFewDevices) return best;
  std::map<int, double> speeds;
  const std::vector<double> shares = speeds_of(request, devices);
  for (size_t d = 0; d < devices.size(); ++d) speeds[devices[d]] = shares[d];
  int64_t least = best.bound->least_ns;  // bound over all searches
  request.listener.proved = [&least, publish = request.listener.proved](Nanoseconds proved) {
    least = std::min(least, proved.value);
    if (publish) publish(proved);
  };
  for (bool gains = true; gains;) {
    gains = false;
    const std::vector<DevicePool> before = pools;
    for (const auto& [time, pair] : near_pools(request, before)) {
      if (is_over(request)) break;
      std::vector<DevicePool> some = with_mixed(before, pair, speeds);
      request.faster_than = Nanoseconds{best.bound->step_ns};
      Outcome found = Harp(request, some, request.faster_than).run();
      auto* faster = std::get_if<Plan>(&found);
      if (!faster || faster->bound->step_ns >= best.bound->step_ns) continue;
      best = std::move(*faster);
      pools = std::move(some);
      gains = true;
    }
  }
  best.bound->least_ns = std::min(best.bound->step_ns, least);
  return best;
}

}  // namespace

Outcome harp(const Request& asked) {
  if (std::optional<Infeasible> no = refuse_cross_sample(asked)) return std::move(*no);
  Request request = asked;
  std::map<int, std::shared_ptr<StageSynthesis>> stages;  // shared by all searches
  if (!request.cache.stages) request.cache.stages = &stages;
  const std::vector<DevicePool> pools = fastest_pools(request);
  // With short memory, sums over layers overestimate whole stages, which need less memory: they
  // exclude no chain.
  const auto known = has_room_for_replicas(request) ? request.faster_than : std::nullopt;
  Outcome found = Harp(request, pools, known).run();
  if (auto* plan = std::get_if<Plan>(&found))
    return with_mixed_stages(request, pools, std::move(*plan));
  return found;
}

}  // namespace medley
