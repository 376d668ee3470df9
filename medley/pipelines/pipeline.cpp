#include "medley/pipelines/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/pipelines/pipeline_settle.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/late_weights.h"

namespace medley {
namespace {

using namespace pipeline;

bool same_stages(const PipelinePlan& a, const PipelinePlan& b) {
  return a.choice == b.choice &&
         std::ranges::equal(a.stages, b.stages, {}, &PipelineStage::range, &PipelineStage::range) &&
         std::ranges::equal(a.stages, b.stages, {}, &PipelineStage::option, &PipelineStage::option);
}

// Intervals searched at once, whatever the number of cores: the result is the same on all machines.
constexpr size_t kAtOnce = 2;
constexpr std::ptrdiff_t kFirstParts = 4;  // of an interval, for the first chain
// Of a schedule, for gradients of weights to come later: what they need is kept for it.
constexpr double kWorthLate = 0.005;
constexpr int64_t kMostLateCalls = 100'000;  // that are timed for it
constexpr int64_t kStepParts = 128;          // a closer bound of a step is found to one of these

// Periods in [low, high] that are not decided yet. No chain for any of them costs less than `cost`.
struct Interval {
  int64_t low = 0, high = 0, cost = 0;
};

// All periods for one choice of micro-batches. The cost of the cheapest chain, g(P), falls as P
// grows, so a search at P decides much:
//
//   g(P) is that of a plan whose own period is P' <= P:   nothing is better in [P', P]
//   no chain for P:                                        none for shorter ones
//   g(high) + (B-1) low >= best:                           nothing in [low, high] is better
//
// The last one is HARP's limit above, T / B, of every interval.
class Periods {
 public:
  // `alone`: else others search at the same time, on the same cores.
  Periods(const PipelineRequest& request,
          Table table,
          int choice,
          PipelinePlans& found,
          bool alone = true)
      : request_(request),
        found_(found),
        table_(std::move(table)),
        choice_(choice),
        more_(table_.microbatches() - 1),
        alone_(alone) {}

  // Returns a lower bound of this choice; updates what was found.
  int64_t run();
  int64_t step_bound(int64_t enough) const;

 private:
  int64_t best() const {
    const int64_t below = request_.below.value;
    return found_.plans.empty() ? below : std::min(below, found_.plans.front().predicted.value);
  }
  // No better plan than this matters.
  int64_t enough() const {
    if (best() == kNever || request_.gap <= 0) return best();
    return best() - static_cast<int64_t>(static_cast<double>(best()) * request_.gap);
  }
  int64_t bound(const Interval& interval) const { return interval.cost + more_ * interval.low; }
  // Searches at the upper ends of some intervals, on all cores. Returns what is left of each.
  std::vector<std::optional<Interval>> search(const std::vector<Interval>& intervals);
  // Adds the plan of the cheapest chain for the upper end. Returns what is left of the interval.
  std::optional<Interval> take(const Chain& chain, Interval interval);
  // Where to divide an interval: at the middle one of the steps in it, or, as long as nothing is
  // found, before it, since short periods are searched sooner; at its end if there are few.
  int64_t middle_of(const Interval& interval) const;
  void add(PipelinePlan plan);
  std::vector<Interval> first_intervals(int64_t least);
  void try_all();

  const PipelineRequest& request_;
  PipelinePlans& found_;
  const Table table_;
  const int choice_;
  const int64_t more_;
  const bool alone_;
};

void Periods::add(PipelinePlan plan) {
  std::vector<PipelinePlan>& plans = found_.plans;
  if (plan.predicted >= request_.below) return;
  for (const PipelinePlan& other : plans)
    if (same_stages(other, plan)) return;
  const auto place = std::ranges::upper_bound(plans, plan.predicted, {}, &PipelinePlan::predicted);
  plans.insert(place, std::move(plan));
  if (plans.size() > at(std::max(1, request_.candidates))) plans.pop_back();
}

std::vector<std::optional<Interval>> Periods::search(const std::vector<Interval>& intervals) {
  std::vector<Chain> chains(intervals.size());
  std::vector<int64_t> labels(intervals.size());
  const auto search_one = [&](size_t i) {
    ChainSearch search{.period = intervals[i].high, .last_pool = request_.last_pool};
    if (best() < kNever) search.below = best() - more_ * intervals[i].low;
    chains[i] = cheapest_chain(table_, search, labels[i]);
  };
  if (alone_)
    for_each_in_parallel(intervals.size(), search_one);
  else
    for (size_t i = 0; i < intervals.size(); ++i) search_one(i);
  std::vector<std::optional<Interval>> left;
  for (size_t i = 0; i < intervals.size(); ++i) {
    ++found_.searches;
    found_.labels += labels[i];
    left.push_back(take(chains[i], intervals[i]));
  }
  return left;
}

std::optional<Interval> Periods::take(const Chain& chain, Interval interval) {
  if (chain.stages.empty()) return std::nullopt;
  PipelinePlan plan = plan_of(table_, choice_, chain);
  settle(plan, request_.in_flight, interval.high, cost_of(chain));
  interval.high = plan.period.value - 1;
  interval.cost = chain.cost;
  add(std::move(plan));
  if (interval.high < interval.low) return std::nullopt;
  return interval;
}

int64_t Periods::middle_of(const Interval& interval) const {
  const std::vector<int64_t>& steps = table_.steps();
  const auto first = std::ranges::upper_bound(steps, interval.low);
  const auto last = std::ranges::upper_bound(steps, interval.high);
  if (last - first < 2) return interval.high;
  const std::ptrdiff_t parts = alone_ && found_.plans.empty() ? kFirstParts : 2;
  return first[std::max(std::ptrdiff_t{1}, (last - first) / parts) - 1];
}

// Goes up from the least period until something fits.
std::vector<Interval> Periods::first_intervals(int64_t least) {
  const int64_t longest = std::max(least, table_.longest_period());
  const int64_t least_sum = table_.least_sum();
  int64_t low = least, step = std::max<int64_t>(1, least / 128);
  std::vector<Interval> intervals;
  for (int64_t high = more_ == 0 ? longest : least;; high = std::min(longest, high + step)) {
    if (best() < kNever && least_sum + more_ * low >= best()) return {};
    const bool had = best() < kNever;
    const int64_t before = best();
    const std::optional<Interval> left = search({{low, high, least_sum}})[0];
    if (left) intervals.push_back(*left);
    low = high + 1;
    // Once there is any plan, limits hold for whatever is above.
    if (high == longest) return intervals;
    if (left || had || best() < before) break;
    step *= 2;
  }
  int64_t high = longest;
  if (more_ > 0) high = std::min(high, (best() - least_sum) / more_);
  if (low <= high) intervals.push_back({low, high, least_sum});
  return intervals;
}

void Periods::try_all() {
  for (int64_t period = 1; period <= request_.longest_period.value; ++period) {
    const Chain chain =
        cheapest_chain(table_, {period, kNever, false, request_.last_pool}, found_.labels);
    ++found_.searches;
    if (chain.stages.empty()) continue;
    PipelinePlan plan = plan_of(table_, choice_, chain);
    settle(plan, request_.in_flight, period, cost_of(chain));
    plan.predicted = {chain.cost + more_ * period};  // not by the period that it could have
    plan.period = {period};
    add(std::move(plan));
  }
}

int64_t Periods::run() {
  if (!request_.pruned) return try_all(), best();
  const int64_t least = least_period(table_);
  if (least == kNever) return kNever;
  std::vector<Interval> intervals = first_intervals(least);
  const auto last = [&](const Interval& a, const Interval& b) { return bound(a) > bound(b); };
  std::ranges::make_heap(intervals, last);
  const auto push = [&](const Interval& i) {
    intervals.push_back(i);
    std::ranges::push_heap(intervals, last);
  };
  const auto is_open = [&] { return !intervals.empty() && bound(intervals.front()) < enough(); };
  while (is_open()) {
    std::vector<Interval> lower, upper;
    while (lower.size() < kAtOnce && is_open()) {
      std::ranges::pop_heap(intervals, last);
      Interval interval = intervals.back();
      intervals.pop_back();
      // What is beyond the limit above cannot be better.
      if (more_ > 0 && best() < kNever)
        interval.high = std::min(interval.high, (best() - interval.cost) / more_);
      const int64_t middle = middle_of(interval);
      lower.push_back({interval.low, middle, interval.cost});
      if (middle < interval.high) upper.push_back({middle + 1, interval.high, interval.cost});
    }
    for (const std::optional<Interval>& left : search(lower))
      if (left) push(*left);
    for (const Interval& interval : upper) push(interval);
  }
  return intervals.empty() ? best() : std::min(best(), bound(intervals.front()));
}

// Every stage works for all micro-batches, and one micro-batch passes all stages. Closer: a stage
// begins when the first one has passed those before it and ends before the last one is back there;
// each is in flight on a stage for as long as it is behind it, and there is room for so many only.
int64_t Periods::step_bound(int64_t enough) const {
  const int64_t least = least_period(table_);
  if (least == kNever) return kNever;
  const int64_t count = table_.microbatches();
  int64_t low = std::max(least * count, table_.least_way()), high = std::min(best(), enough);
  if (!request_.closer || table_.rule() != InFlightRule::kPeriod || high >= kNever) return low;
  const auto is_possible = [&](int64_t step) {
    const ChainSearch search{.period = step / count + 1, .below = step + 1, .at_least = count};
    int64_t labels = 0;
    return !cheapest_chain(table_, search, labels).stages.empty();
  };
  if (low < high && high == enough && !is_possible(enough - 1)) return enough;
  while (high - low > high / kStepParts) {
    const int64_t middle = low + (high - low) / 2;
    if (is_possible(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

struct StageShortage {
  Bytes missing{-1};  // below 0: nothing
  size_t stage = 0;
  Bytes needed;
};

// Of the stages of a plan, the one whose devices have too little memory by the most.
StageShortage worst_shortage(const PipelineRequest& request, const PipelinePlan& plan) {
  StageShortage worst;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StageOption& o = plan.stages[i].option;
    const Bytes needed = o.persistent + o.transient + o.saved * plan.stages[i].in_flight;
    const Bytes memory = request.pools[at(plan.stages[i].range.pool)].memory;
    if (needed - memory > worst.missing) worst = {needed - memory, i, needed};
  }
  return worst;
}

// Returns a plan for the longest period, for devices with so much more memory or without limits.
std::optional<PipelinePlan> plan_with(PipelineRequest request,
                                      int choice,
                                      std::optional<Bytes> more) {
  for (PipelinePool& pool : request.pools) pool.memory += more.value_or(Bytes{});
  const Table table(request, choice, !more);
  int64_t labels = 0;
  const int64_t period = table.longest_period();
  const Chain chain = cheapest_chain(table, {period}, labels);
  if (chain.stages.empty()) return std::nullopt;
  PipelinePlan plan = plan_of(table, choice, chain);
  const ScheduleRequest schedule = schedule_request(plan);
  const std::vector<int> counts = counts_at(schedule, request.in_flight, {period});
  for (size_t i = 0; i < counts.size(); ++i) plan.stages[i].in_flight = counts[i];
  return plan;
}

// Says which stage misses how much memory, in the plan found that misses least.
std::string explain_misfit(const PipelineRequest& request) {
  StageShortage least;
  std::string text = "no chain of linked pools can run all layers";
  for (size_t choice = 0; choice < request.microbatches.size(); ++choice) {
    const int c = static_cast<int>(choice);
    std::optional<PipelinePlan> plan = plan_with(request, c, std::nullopt);
    if (!plan) continue;
    Bytes low{}, high = worst_shortage(request, *plan).missing;
    while ((high - low).value > std::max<int64_t>(1, high.value / 64)) {
      const Bytes middle = low + (high - low) / 2;
      std::optional<PipelinePlan> other = plan_with(request, c, middle);
      (other ? high : low) = middle;
      if (other) plan = std::move(other);
    }
    const StageShortage worst = worst_shortage(request, *plan);
    if (least.missing.value >= 0 && worst.missing >= least.missing) continue;
    least = worst;
    const PipelineStage& stage = plan->stages[worst.stage];
    const PipelinePool& pool = request.pools[at(stage.range.pool)];
    text = fmt::format(
        "stage {} (layers {} to {}) on {} of {} needs {} on each device, {} more than it has, "
        "with {} of {} micro-batches in flight",
        worst.stage,
        stage.range.begin,
        stage.range.end - 1,
        stage.range.devices,
        pool.name,
        to_string(worst.needed),
        to_string(worst.missing),
        stage.in_flight,
        plan->microbatches);
  }
  return text;
}

}  // namespace

LinkCurve constant_bandwidth(BytesPerSecond bandwidth, Nanoseconds latency) {
  const Bytes size{int64_t{1} << 30};
  return {{{size, to_nanoseconds(size / bandwidth)}}, latency};
}

Nanoseconds occupied(const LinkCurve& link, Bytes message) {
  MEDLEY_CHECK(!link.points.empty());
  const auto share = [](double time, double part, double whole) {
    return Nanoseconds{std::llround(time * part / whole)};
  };
  const auto next = std::ranges::lower_bound(link.points, message, {}, &LinkCurve::Point::size);
  const auto bytes = static_cast<double>(message.value);
  if (next == link.points.begin() || next == link.points.end()) {
    const LinkCurve::Point& p = next == link.points.end() ? link.points.back() : *next;
    return share(static_cast<double>(p.time.value), bytes, static_cast<double>(p.size.value));
  }
  const LinkCurve::Point &a = *std::prev(next), &b = *next;
  return a.time + share(static_cast<double>((b.time - a.time).value),
                        static_cast<double>((message - a.size).value),
                        static_cast<double>((b.size - a.size).value));
}

Bytes bytes_of(const std::vector<Bytes>& layers, int begin, int end) {
  Bytes sum;
  for (int l = begin; l < end && !layers.empty(); ++l) sum += layers[at(l)];
  return sum;
}

Bytes held_while_summed(const std::vector<Bytes>& gradients, const StageRange& range) {
  return {2 * bytes_of(gradients, range.begin, range.end).value / range.devices};
}

std::optional<Nanoseconds> exchange_time(const std::optional<LinkCurve>& link, Bytes shared) {
  if (shared <= Bytes{}) return Nanoseconds{};
  if (!link) return std::nullopt;
  return occupied(*link, shared) + link->latency;
}

std::variant<PipelinePlans, Infeasible> plan_pipeline(const PipelineRequest& request) {
  verify(request);
  PipelinePlans found;
  found.lower_bound = found.step_bound = {kNever};
  for (size_t choice = 0; choice < request.microbatches.size(); ++choice) {
    const int c = static_cast<int>(choice);
    Periods periods(request, Table(request, c, false), c, found);
    found.lower_bound = std::min(found.lower_bound, {periods.run()});
    found.step_bound = std::min(found.step_bound, {periods.step_bound(kNever)});
  }
  if (found.plans.empty()) return Infeasible{request.explain ? explain_misfit(request) : ""};
  return found;
}

Nanoseconds closer_step_bound(PipelineRequest request, Nanoseconds enough) {
  verify(request);
  MEDLEY_CHECK(request.microbatches.size() == 1);
  request.closer = true;
  PipelinePlans none;
  return {Periods(request, Table(request, 0, false), 0, none)
              .step_bound(std::min(enough.value, kNever))};
}

ChainSearches::ChainSearches(const PipelineRequest& request) {
  verify(request);
  MEDLEY_CHECK(request.microbatches.size() == 1);
  tables_ = std::make_unique<Tables>(request, Table(request, 0, false));
}

ChainSearches::~ChainSearches() = default;

std::vector<PipelinePlan> ChainSearches::on(const std::vector<int>& devices,
                                            int microbatches,
                                            Nanoseconds below) const {
  PipelineRequest request = tables_->request;
  request.below = below;
  PipelinePlans found;
  Periods(request, tables_->table.on(devices, microbatches), 0, found, false).run();
  return found.plans;
}

ScheduleRequest schedule_request(const PipelinePlan& plan) {
  ScheduleRequest request;
  MicrobatchTimes times;
  for (const PipelineStage& stage : plan.stages) {
    const StageOption& option = stage.option;
    times.stages.push_back({option.forward, option.backward, option.weights});
    request.max_in_flight.push_back(stage.room);
    request.pools.push_back(stage.range.pool);
  }
  times.boundaries = plan.boundaries;
  request.times = equal_microbatches(std::move(times), plan.microbatches);
  return request;
}

PipelineTurns turns_of(const PipelinePlan& plan, int timings) {
  const ScheduleRequest request = schedule_request(plan);
  InFlight found = h1f1b(request, timings);
  PipelineTurns turns{std::move(found.counts), std::vector(plan.stages.size(), 0), {}};
  std::vector<int> most;
  std::vector<Nanoseconds> after;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    most.push_back(s == 0 ? 0 : plan.stages[s].room - turns.in_flight[s] + 1);
    after.push_back(plan.stages[s].option.update);
  }
  const auto calls = 2 * static_cast<int64_t>(plan.stages.size()) * plan.microbatches;
  const auto late_timings = static_cast<int>(std::min<int64_t>(timings, kMostLateCalls / calls));
  after[0] = std::max(after[0], plan.exchange);
  LateWeights late =
      late_weights(request.times, turns.in_flight, most, after, {late_timings, kWorthLate});
  turns.step = late.whole;
  if (1 - late.finish / late.whole < kWorthLate) return turns;
  turns.late_weights = std::move(late.counts);
  turns.step = late.finish;
  return turns;
}

Nanoseconds after_schedule(const PipelinePlan& plan) {
  return std::max(plan.stages[0].option.update, plan.exchange);
}

}  // namespace medley
