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
#include "medley/groups/column_generation.h"
#include "medley/groups/divisions.h"
#include "medley/pipelines/candidates.h"
#include "medley/program/lower.h"
#include "medley/schedule/h1f1b.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

constexpr int kLayersPerBlock = 2;
constexpr size_t kMostAmounts = 150;  // of units, for each of which chains are searched
constexpr size_t kMostPipelines = 8;
constexpr double kFirstStep = 2;  // of what all devices take at least: where pricing begins
constexpr int kMostFirstSteps = 6;
// Of chains, for new pipelines; for a bound; and for a closer one.
constexpr int64_t kMostSearches = 500, kMostRoughSearches = 2000, kMostCloseSearches = 300;
constexpr int kMostCounted = 32;  // devices: with more, chains at prices do not count them
constexpr int kOfEachAmount = 2;  // chains of it for a number of micro-batches
constexpr double kGap = 0.01;     // of a chain
// Divisions may be predicted to be slower by this than the best one.
constexpr double kSlower = 1.1;
constexpr size_t kMostDivisions = 12;  // that are synthesised, and
constexpr int kMostPriced = 4;         // of them, simulated
constexpr int kMostSplits = 3;         // of their rows
constexpr size_t kSteps = 3 + kMostPriced;

// Whole numbers that divide one, ascending.
std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int d = 1; d <= number; ++d)
    if (number % d == 0) all.push_back(d);
  return all;
}

// Units of each pool: nodes, or of a single node the devices; joined to larger ones, those of the
// pool with most first, until there are few amounts of them.
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
  while (amounts() > kMostAmounts) {
    const auto most =
        std::ranges::max_element(ways, {}, [](const auto& way) { return way.back(); });
    if (most->size() == 1) break;
    most->pop_back();
  }
  Units units;
  for (const std::vector<int>& way : ways) units.push_back(way.back());
  return units;
}

Units numbers_of_devices(const std::vector<DevicePool>& pools) {
  Units numbers;
  for (const DevicePool& pool : pools) numbers.push_back(static_cast<int>(pool.devices.size()));
  return numbers;
}

class AutoHet {
 public:
  explicit AutoHet(const Request& request)
      : request_(request),
        pools_(pools_of(request)),
        synthesis_(request, {.per_block = kLayersPerBlock}),
        candidates_(request, pools_, synthesis_),
        counts_(microbatch_counts(request)),
        devices_(numbers_of_devices(pools_)),
        generation_(devices_, request.global_batch) {
    for (size_t p = 0; p < pools_.size(); ++p) {
      Request alone = request;
      alone.devices = names_of(request.cluster, pools_[p].devices);
      speed_.push_back(1.0 / static_cast<double>(work_bound(alone).value) / devices_[p]);
    }
    find_amounts();
  }

  Outcome run() {
    if (num_devices() < 2 || request_.global_batch < 2) return one_pipeline();
    if (amounts_.empty() && request_.faster_than)
      return Infeasible{fmt::format(
          "the devices are {} pools: several pipelines on so many take long to find, and a plan is "
          "known",
          pools_.size())};
    find_columns();
    if (step_ && !amounts_.empty() && is_small() && !enough()) search_at_prices();
    std::vector<Division> divisions = best_divisions(request_of(columns_));
    std::erase_if(divisions, [&](const Division& division) {
      return static_cast<int64_t>(division.columns.size()) > request_.global_batch ||
             (request_.faster_than && division.step >= *request_.faster_than);
    });
    if (divisions.empty()) return request_.faster_than ? none_is_faster() : one_pipeline();
    report(request_, "autohet: stages as wholes", 2, kSteps);
    std::vector<PlanCandidate> all;
    for (const Division& division : divisions) all.push_back(candidate(division.columns));
    candidates_.solve(all);
    for (PlanCandidate& each : all) {
      each = balanced(each);
      candidates_.solve({each});
      candidates_.add(each);
    }
    candidates_.choose(kMostPriced, [&](int candidate) {
      report(request_, "autohet: simulating", at(4 + candidate), kSteps);
    });
    candidates_.join_axes();
    if (candidates_.timed().empty() && request_.faster_than) return none_is_faster();
    Outcome found = candidates_.best();
    Plan* plan = std::get_if<Plan>(&found);
    if (!plan) return one_pipeline();
    const Nanoseconds step = candidates_.best_step();
    find_bound();
    plan->bound = StepBound{step.value, std::min(step, least_).value};
    return found;
  }

 private:
  // A column, and the chain that it is.
  struct Chain {
    PipelinePlan plan;
    int64_t count = 1;  // micro-batches of a step if all are as large
  };

  static Outcome none_is_faster() {
    return Infeasible{"no two pipelines are predicted to be faster than what is known"};
  }

  // Predicted steps that matter.
  Nanoseconds limit() const {
    Nanoseconds limit =
        step_ ? Nanoseconds{static_cast<int64_t>(static_cast<double>(step_->value) * kSlower)}
              : kLongest;
    return request_.faster_than ? std::min(limit, *request_.faster_than) : limit;
  }

  // Where there are not devices, rows or memory for two.
  Outcome one_pipeline() const {
    Outcome found = request_.ask("harp");
    if (Plan* plan = std::get_if<Plan>(&found)) plan->strategy = request_.strategy;
    return found;
  }

  // All whole numbers of units of each pool, in devices, unless there are too many.
  void find_amounts() {
    const Units units = units_of(pools_);
    size_t number = 1;
    for (const int count : units)
      if ((number *= at(count) + 1) > kMostAmounts) return;
    for (size_t n = 1; n < number; ++n) {
      Units& amount = amounts_.emplace_back();
      size_t rest = n;
      for (size_t p = 0; p < units.size(); ++p) {
        const size_t ways = at(units[p]) + 1;
        amount.push_back(static_cast<int>(rest % ways) * devices_[p] / units[p]);
        rest /= ways;
      }
    }
  }

  bool is_small() const { return num_devices() <= kMostCounted; }
  int num_devices() const { return std::accumulate(devices_.begin(), devices_.end(), 0); }

  // Of all devices' speed.
  double share(const Units& amount) const {
    double own = 0, all = 0;
    for (size_t p = 0; p < amount.size(); ++p) {
      own += speed_[p] * amount[p];
      all += speed_[p] * devices_[p];
    }
    return own / all;
  }

  StageConfig config(int64_t count) const {
    return {candidates_.rows(count), count, 0, StageStyle::kBest};
  }

  DivisionRequest request_of(const std::vector<Column>& columns) const {
    DivisionRequest request;
    request.units = devices_;
    request.columns = columns;
    request.rows = request_.global_batch;
    request.most_pipelines = kMostPipelines;
    request.divisions = kMostDivisions;
    request.slower = kSlower;
    return request;
  }

  // No pipelines of what is searched take less, whatever their schedule.
  void find_bound() {
    least_ = std::max(least_, work_bound(request_));
    if (!step_ || chains_at_prices_.empty()) return;
    GenerationLimits limits;
    limits.is_over = request_.is_over;
    limits.searches = kMostRoughSearches;
    least_ = std::max(least_, generation_.bound(*step_, Closeness::kRough, limits));
    if (!is_small()) return;
    limits.searches = kMostCloseSearches;
    least_ = std::max(least_, generation_.bound(*step_, Closeness::kClose, limits));
  }

  // Whether what is found will do.
  bool enough() {
    if (!step_) return false;
    if (is_over(request_)) return true;
    if (!request_.within) return false;
    find_bound();
    const double shorter = 1 - least_ / *step_;
    return shorter <= *request_.within;
  }

  // Micro-batches of a step in one pipeline have many rows first, as harp begins: fewer and more of
  // them while that helps.
  void find_columns() {
    const size_t start = counts_.size() * 2 / 3;
    for (size_t i = start; i < counts_.size() && find_columns(counts_[i]); ++i) {
    }
    for (size_t i = start; i > 0 && find_columns(counts_[i - 1]); --i) {
    }
  }

  // Returns whether divisions got better, or there is none yet.
  bool find_columns(int64_t count) {
    report(request_, fmt::format("autohet: chains of {} micro-batches", count), 1, kSteps);
    if (enough()) return false;
    const bool had = step_.has_value();
    const Nanoseconds before = step_.value_or(kLongest);
    // First with what keeps everything at no price, which says what need not be looked at closer.
    if (!had) add_columns(count, {});
    add_columns(count, longest_stage(count));
    return !step_ || !had || *step_ < before;
  }

  // For a micro-batch, of the smallest amount of units that does its share.
  Nanoseconds longest_stage(int64_t count) const {
    double least = 1;
    for (const Units& amount : amounts_) least = std::min(least, share(amount));
    if (amounts_.empty()) least = 0;
    const double microbatches = std::max(1.0, least * static_cast<double>(count));
    return {static_cast<int64_t>(static_cast<double>(limit().value) / microbatches)};
  }

  void add_columns(int64_t count, Nanoseconds closer) {
    std::vector<std::pair<StageMesh, StageConfig>> uses;
    std::map<std::pair<int, int>, StageOptionTable*> offers;  // [pool, devices]
    PipelineRequest request;
    request.layers = static_cast<int>(synthesis_.layers().layers.size());
    request.pools = candidates_.pools();
    request.links = candidates_.links();
    request.candidates = kOfEachAmount;
    request.gap = kGap;
    request.explain = false;
    for (int p = 0; p < static_cast<int>(pools_.size()); ++p)
      for (const int size : request.pools[at(p)].sizes) {
        const StageMesh mesh = candidates_.mesh({0, 0, p, size});
        uses.emplace_back(mesh, config(count));
        offers[{p, size}] = &synthesis_.offers(mesh, config(count));
      }
    synthesis_.solve_layers(uses, closer);
    request.microbatches = {
        {static_cast<int>(count),
         candidates_.cuts(candidates_.rows(count)),
         [&](const StageRange& range) {
           return synthesis_.options(
               range.begin, range.end, *offers.at({range.pool, range.devices}), closer);
         }}};
    search_amounts(request);
    // What is offered at no price is offered again.
    if (closer > Nanoseconds{} && (is_small() || !request_.faster_than)) {
      chains_at_prices_.push_back(std::make_unique<PricedChains>(std::move(request), is_small()));
      generation_.add_choice(candidates_.rows(count), *chains_at_prices_.back());
      choices_.push_back(count);
    }
    if (amounts_.empty() && closer > Nanoseconds{}) search_at_prices();
    find_step();
  }

  // The best chains for each amount of devices.
  void search_amounts(const PipelineRequest& request) {
    if (amounts_.empty() || pools_.size() > kMostPools) return;
    const int64_t count = request.microbatches[0].count;
    const ChainSearches searches(request);
    std::vector<std::vector<PipelinePlan>> found(amounts_.size());
    for_each_in_parallel(amounts_.size(), [&](size_t i) {
      const double own = share(amounts_[i]) * static_cast<double>(count);
      const int microbatches = std::max(1, static_cast<int>(own + 0.5));
      found[i] = searches.on(amounts_[i], microbatches, limit());
    });
    for (size_t i = 0; i < amounts_.size(); ++i)
      for (PipelinePlan& plan : found[i]) {
        const Nanoseconds period = std::max(plan.period, Nanoseconds{1});
        const Nanoseconds fill = plan.predicted - period * (plan.microbatches - 1);
        add_column(amounts_[i], std::move(plan), fill, period, count);
      }
  }

  // Chains that the devices' prices ask for, at the shortest step known.
  void search_at_prices() {
    const size_t known = generation_.columns().size();
    double step = step_ ? static_cast<double>(step_->value)
                        : kFirstStep * static_cast<double>(work_bound(request_).value);
    for (int i = 0; i < kMostFirstSteps; ++i, step *= kFirstStep) {
      GenerationLimits limits;
      limits.searches = kMostSearches;
      limits.is_over = request_.is_over;
      const double rows = generation_.generate({static_cast<int64_t>(step)}, limits);
      if (step_ || rows >= static_cast<double>(request_.global_batch)) break;
    }
    const std::vector<PipelineColumn>& columns = generation_.columns();
    for (size_t c = known; c < columns.size(); ++c)
      add_column(columns[c].devices,
                 columns[c].plan,
                 columns[c].fill,
                 columns[c].period,
                 choices_[columns[c].choice]);
    find_step();
  }

  void find_step() {
    DivisionRequest best = request_of(columns_);
    best.divisions = 1;
    best.slower = 1;
    if (const auto divisions = best_divisions(best); !divisions.empty()) step_ = divisions[0].step;
  }

  void add_column(const Units& devices,
                  PipelinePlan plan,
                  Nanoseconds fill,
                  Nanoseconds period,
                  int64_t count) {
    columns_.push_back({devices, candidates_.rows(count), fill, period, after(plan)});
    chains_.push_back({std::move(plan), count});
  }

  // How long a pipeline sums gradients with others once it is done: with D of them each stage sends
  // and receives 2 (D - 1) / D of its layers' bytes through its nodes, over the slowest link to any
  // pool, while the stages before it go backward.
  std::vector<Nanoseconds> after(const PipelinePlan& plan) const {
    std::vector<Nanoseconds> after(kMostPipelines + 1);
    Nanoseconds hidden;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const StageRange& range = plan.stages[s].range;
      if (s > 0) hidden += plan.stages[s - 1].option.backward + plan.boundaries[s - 1].backward;
      Bytes bytes;
      for (int l = range.begin; l < range.end; ++l) bytes += candidates_.gradients()[at(l)];
      const int per_node = pools_[at(range.pool)].per_node;
      bytes = {bytes.value / std::max(1, range.devices / per_node)};
      Nanoseconds longest;
      for (const auto& link : candidates_.links()[at(range.pool)])
        if (link) longest = std::max(longest, occupied(*link, bytes));
      for (size_t count = 2; count <= kMostPipelines; ++count) {
        const auto number = static_cast<int64_t>(count);
        after[count] = std::max(after[count], longest * (2 * (number - 1)) / number - hidden);
      }
    }
    return after;
  }

  PlanCandidate candidate(const std::vector<int>& columns) const {
    std::vector<Column> own;
    for (const int c : columns) own.push_back(columns_[at(c)]);
    const RowSplit split = split_rows(own, request_.global_batch);
    PlanCandidate candidate;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Chain& chain = chains_[at(columns[i])];
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

  // The same with rows as the timer says when stages are synthesised as wholes.
  PlanCandidate balanced(PlanCandidate candidate) {
    for (int i = 0; i < kMostSplits; ++i) {
      const std::optional<std::vector<PipelinePlan>> plans = candidates_.wholes(candidate);
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

  // What the timer says of one more micro-batch is taken for all.
  static Column column_of(const PipelinePlan& plan, int64_t rows) {
    ScheduleRequest request = schedule_request(plan);
    const Nanoseconds finish = h1f1b(request).finish;
    PipelinePlan more = plan;
    more.microbatches += plan.microbatches;
    const Nanoseconds twice = h1f1b(schedule_request(more)).finish;
    const Nanoseconds period =
        std::max(Nanoseconds{1}, Nanoseconds{(twice - finish).value / plan.microbatches});
    const Nanoseconds after = std::max(plan.stages[0].option.update, plan.exchange);
    return {{}, rows, finish + after - period * (plan.microbatches - 1), period};
  }

  const Request& request_;
  const std::vector<DevicePool> pools_;
  StageSynthesis synthesis_;
  CandidateSet candidates_;
  const std::vector<int64_t> counts_;  // of micro-batches
  const Units devices_;                // [pool]
  std::vector<double> speed_;          // [pool] of a device
  std::vector<Units> amounts_;         // for which the best chains are searched
  ColumnGeneration generation_;
  std::vector<std::unique_ptr<PricedChains>> chains_at_prices_;  // that it looks at
  std::vector<int64_t> choices_;                                 // parallel: micro-batches
  std::vector<Column> columns_;
  std::vector<Chain> chains_;        // parallel
  std::optional<Nanoseconds> step_;  // of the best division, as predicted
  Nanoseconds least_;                // no step is shorter
};

}  // namespace

Outcome autohet(const Request& request) {
  if (const std::string& meet = request.analysis->coupling; !meet.empty())
    return Infeasible{fmt::format("{}: several pipelines are not exact", meet)};
  if (!request.analysis->prepared->weights_in_prologue)
    return Infeasible{"rows meet in a loss weight: several pipelines are not exact"};
  if (const std::string why = why_one_pipeline(request.graph); !why.empty())
    return Infeasible{fmt::format("several pipelines are not possible, since {}", why)};
  return AutoHet(request).run();
}

}  // namespace medley
