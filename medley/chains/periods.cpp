#include "medley/chains/periods.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/chains/pipeline_settle.h"

namespace medley::pipeline {
namespace {

// Parallel searches, independent of the number of cores for equal results on all machines.
constexpr size_t kParallelPeriods = 2;
constexpr std::ptrdiff_t kFirstParts = 4;  // per interval, for the first chain
constexpr int64_t kStepParts = 128;        // resolution of a closer bound, per step

// Layers times numbers of devices of all pools that a chain may use. Above it the stages of a pool
// are consecutive, which leaves far fewer chains.
constexpr int64_t kMostForAnyOrder = 20'000;

bool same_stages(const PipelinePlan& a, const PipelinePlan& b) {
  return a.choice == b.choice &&
         std::ranges::equal(a.stages, b.stages, {}, &PipelineStage::range, &PipelineStage::range) &&
         std::ranges::equal(a.stages, b.stages, {}, &PipelineStage::option, &PipelineStage::option);
}

}  // namespace

DeviceUse use_of(const Table& table) {
  int64_t amounts = table.layers();
  for (int pool = 0; pool < table.pools() && amounts <= kMostForAnyOrder; ++pool)
    amounts *= table.units(pool) + 1;
  return amounts <= kMostForAnyOrder ? DeviceUse::kCounted : DeviceUse::kOnce;
}

Periods::Periods(
    const PipelineRequest& request, Table table, int choice, PipelinePlans& found, bool alone)
    : request_(request),
      found_(found),
      table_(std::move(table)),
      choice_(choice),
      more_(table_.microbatches() - 1),
      use_(request.use.value_or(use_of(table_))),
      alone_(alone) {}

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
  const auto search_one = [&](size_t i) {
    ChainSearch search{.use = use_,
                       .longest = intervals[i].high,
                       .cut_every = request_.cut_every,
                       .last_pool = request_.last_pool};
    if (best() < kNever) search.below = best() - more_ * intervals[i].low;
    chains[i] = cheapest_chain(table_, search);
  };
  if (alone_)
    for_each_in_parallel(intervals.size(), search_one);
  else
    for (size_t i = 0; i < intervals.size(); ++i) search_one(i);
  std::vector<std::optional<Interval>> left;
  for (size_t i = 0; i < intervals.size(); ++i) left.push_back(take(chains[i], intervals[i]));
  found_.searches += static_cast<int>(intervals.size());
  return left;
}

std::optional<Interval> Periods::take(const Chain& chain, Interval interval) {
  if (chain.stages.empty()) return std::nullopt;
  PipelinePlan plan = plan_of(table_, choice_, chain);
  settle(plan, interval.high, cost_of(chain));
  MEDLEY_CHECK(plan.period.value <= interval.high);
  interval.high = plan.period.value - 1;
  interval.cost = chain.cost;
  add(std::move(plan));
  if (interval.high < interval.low) return std::nullopt;
  return interval;
}

int64_t Periods::middle_of(const Interval& interval) const {
  // If nothing better is expected, one search excludes the whole interval.
  if (!alone_ && found_.plans.empty()) return interval.high;
  const std::vector<int64_t>& steps = table_.steps();
  const auto first = std::ranges::upper_bound(steps, interval.low);
  const auto last = std::ranges::upper_bound(steps, interval.high);
  if (last - first < 2) return interval.high;
  const std::ptrdiff_t parts = alone_ && found_.plans.empty() ? kFirstParts : 2;
  return first[std::max(std::ptrdiff_t{1}, (last - first) / parts) - 1];
}

// Goes up from the least period until something fits, at most as far as a better plan is possible.
std::vector<Interval> Periods::first_intervals(int64_t least) {
  const int64_t longest = std::max(least, table_.longest_period());
  const int64_t least_sum = table_.least_sum();
  const auto up_from = [&](int64_t low) -> std::vector<Interval> {
    if (best() < kNever && least_sum + more_ * low >= best()) return {};
    int64_t high = longest;
    if (best() < kNever && more_ > 0) high = std::min(high, (best() - least_sum) / more_);
    if (low > high) return {};
    return {{low, high, least_sum}};
  };
  if (best() < kNever && !alone_) return up_from(least);
  int64_t low = least, step = std::max<int64_t>(1, least / 128);
  for (int64_t high = more_ == 0 ? longest : least;; high = std::min(longest, high + step)) {
    if (best() < kNever && least_sum + more_ * low >= best()) return {};
    const std::optional<Interval> left = search({{low, high, least_sum}})[0];
    low = high + 1;
    if (best() < kNever || high == longest) {
      std::vector<Interval> intervals = high == longest ? std::vector<Interval>{} : up_from(low);
      if (left) intervals.push_back(*left);
      return intervals;
    }
    step *= 2;
  }
}

int64_t Periods::run() {
  const int64_t least = least_period(table_, use_);
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
    while (lower.size() < kParallelPeriods && is_open()) {
      std::ranges::pop_heap(intervals, last);
      Interval interval = intervals.back();
      intervals.pop_back();
      // Periods beyond the limit above cannot be better.
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

// Every stage does all micro-batches, and one passes all stages. Closer: a stage begins after the
// first one has passed earlier stages, and ends before the last one is back there. Each micro-batch
// is in flight while it is on later stages, and memory limits their number.
int64_t Periods::step_bound(int64_t enough) const {
  const int64_t least = least_period(table_, use_);
  if (least == kNever) return kNever;
  const int64_t count = table_.microbatches();
  int64_t low = std::max(least * count, table_.least_way()), high = std::min(best(), enough);
  if (!request_.closer || high >= kNever) return low;
  const auto is_possible = [&](int64_t step) {
    const ChainSearch search{
        .use = use_, .longest = step / count, .microbatches = count, .step = step};
    return !cheapest_chain(table_, search).stages.empty();
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

}  // namespace medley::pipeline
