#include "medley/chains/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/chains/periods.h"
#include "medley/chains/pipeline_settle.h"
#include "medley/schedule/deferred_weights.h"
#include "medley/schedule/h1f1b.h"

namespace medley {
namespace {

using namespace pipeline;

// Least gain, as a share of a schedule, for deferred weight gradients, which cost memory.
constexpr double kWorthDeferring = 0.005;
constexpr int64_t kMostLateCalls = 100'000;  // timed for it at most

struct StageShortage {
  Bytes missing{-1};  // negative: none
  size_t stage = 0;
  Bytes needed;
};

// Returns the largest memory shortage among the stages of a plan.
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

// Returns a plan for the longest period, with `more` memory per device or without limits.
std::optional<PipelinePlan> plan_with(PipelineRequest request,
                                      int choice,
                                      std::optional<Bytes> more) {
  for (PipelinePool& pool : request.pools) pool.memory += more.value_or(Bytes{});
  const Table table(request, choice, !more);
  const int64_t period = table.longest_period();
  const Chain chain = cheapest_chain(table, {.longest = period});
  if (chain.stages.empty()) return std::nullopt;
  PipelinePlan plan = plan_of(table, choice, chain);
  const ScheduleRequest schedule = schedule_request(plan);
  const std::vector<int> counts = counts_at(schedule, {period});
  for (size_t i = 0; i < counts.size(); ++i) plan.stages[i].in_flight = counts[i];
  return plan;
}

// Reports the stage and missing bytes of the plan that misses least.
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
  const auto deferred_timings =
      static_cast<int>(std::min<int64_t>(timings, kMostLateCalls / calls));
  after[0] = std::max(after[0], plan.exchange);
  DeferredWeights late = deferred_weights(
      request.times, turns.in_flight, most, after, {deferred_timings, kWorthDeferring});
  turns.step = late.whole;
  if (1 - late.finish / late.whole < kWorthDeferring) return turns;
  turns.deferred_weights = std::move(late.counts);
  turns.step = late.finish;
  return turns;
}

Nanoseconds after_schedule(const PipelinePlan& plan) {
  return std::max(plan.stages[0].option.update, plan.exchange);
}

}  // namespace medley
