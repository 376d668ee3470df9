#pragma once

// Cuts a sequence of layers into stages and assigns devices of pools to each stage (HARP,
// https://arxiv.org/abs/2509.24859). Knows no graphs and no plans. Stage times come from a table of
// options, cut times from bytes and link curves. Both may be synthesised from a graph or measured.
//
//   layers   0 1 2 3 4 | 5 6 | 7 8 9         cuts    5, 7
//   devices   fast x 4   fast   slow x 8     pools   a pool's stages follow each other
//   in flight    4         3      1          at most the number that fits in a stage's memory
//
// Over all chains of stages, orders of pools and periods P. Stage i takes t_i forward and backward
// for one micro-batch. The boundary after it has round trip r_i, and c_i is the longer of its
// directions. B is the number of micro-batches:
//
//   step = sum(t_i + r_i) + (B-1) P + max(W_0, X)     P >= t_i, P >= c_i
//   W_i  = max(u_i, W_{i+1} - b_i - down_i - latency_i)             W of no stage: 0
//
// X is the time in which the first stage sends its gradient of parameters shared with the last
// layer (an embedding tied to the head) to the last stage. The last stage's own part arrives much
// earlier. W is the work left after the last backward. Stage i updates in u_i while earlier stages
// still run backward in b, so only the first stages' updates are exposed. With deferred weight
// gradients (schedule/deferred_weights.h), w_i of t_i, the sum is over max(forward, t_i - 2 w_i) of
// all stages but the last. It is exact for equal stages, else an estimate. Stage i stores N_i
// micro-batches, the fewest that overlap transfers at period P (counts_for_period(),
// schedule/period.h). Short memory may make P longer than any stage.

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "medley/base/infeasible.h"
#include "medley/base/units.h"
#include "medley/schedule/timer.h"

namespace medley {

// Layers [begin, end) on some devices of a pool.
struct StageRange {
  int begin = 0, end = 0;
  int pool = 0, devices = 0;
  auto operator<=>(const StageRange&) const = default;
};

// One way to run a stage. Times are per micro-batch, except `update`, which is per step and
// includes per-step communication. Bytes are those of the device with the least free memory.
struct StageOption {
  Nanoseconds forward, backward, update;
  Bytes persistent;  // parameters, gradients, optimizer state
  Bytes saved;       // for each micro-batch in flight
  Bytes transient;   // the most beyond these
  int id = 0;        // chosen by the source of the option
  // Part of `backward` that computes weight gradients and may be deferred; 0: it may not.
  Nanoseconds weights{};
  bool operator==(const StageOption&) const = default;
};
// Returns the Pareto-optimal options of a stage, none if the stage cannot run. It is called once
// for each range. Times are below kLongest.
using StageOptions = std::function<std::vector<StageOption>(const StageRange&)>;
inline constexpr Nanoseconds kLongest{int64_t{1} << 40};  // 18 minutes

// Time for which a message occupies a link, by message size: linear between points, proportional to
// size outside of them. One point is a constant bandwidth.
struct LinkCurve {
  struct Point {
    Bytes size;
    Nanoseconds time;
    bool operator==(const Point&) const = default;
  };
  std::vector<Point> points;  // ascending in size and in time
  Nanoseconds latency;
  bool operator==(const LinkCurve&) const = default;
};
LinkCurve constant_bandwidth(BytesPerSecond bandwidth, Nanoseconds latency);
Nanoseconds occupied(const LinkCurve& link, Bytes message);

struct PipelinePool {
  std::string name;
  int devices = 0;
  // Mesh sizes. Every selection whose sum is at most `devices` must fit into the pool, as powers of
  // two do.
  std::vector<int> sizes;
  Bytes memory;  // per device
  // Whether all its devices send to other pools through one port. If a chain returns to such a
  // pool, messages over that boundary take twice as long.
  bool one_port = false;
};

// Bytes that one micro-batch moves over the cut after a layer, with skip connections.
struct CutBytes {
  Bytes up, down;
  bool operator==(const CutBytes&) const = default;
};

// Returns the sum of `layers` in [begin, end); 0 if the range or `layers` is empty.
Bytes bytes_of(const std::vector<Bytes>& layers, int begin, int end);

// Returns the extra bytes on a device of a stage while gradients are summed with other pipelines:
// its part as sent and as received. `gradients`: bytes of each layer.
Bytes held_while_summed(const std::vector<Bytes>& gradients, const StageRange& range);

// One way to divide the batch of a step.
struct MicrobatchChoice {
  int count = 1;
  std::vector<CutBytes> cuts;  // [layer]; one fewer than layers
  StageOptions options;
  // [layer] Stages whose sequences of layers are equal here have equal options and sums. Empty:
  // unknown.
  std::vector<int> like{};
};

// How a chain may use the devices of a pool.
enum class DeviceUse : uint8_t {
  kAny,      // as many as it pays for, pools in any order
  kCounted,  // at most those available, of the first kMostCountedPools; any order
  // At most those available, and the stages of a pool are consecutive. If the ends exchange
  // gradients, some first stages may use the pool of the last ones.
  kOnce,
};
inline constexpr int kMostCountedPools = 8, kMostCountedDevices = (1 << 15) - 1;  // per pool

struct PipelineRequest {
  int layers = 0;
  std::vector<PipelinePool> pools;
  std::vector<std::vector<std::optional<LinkCurve>>> links;  // [from][to]; nothing: no link
  Bytes shared;  // bytes that the ends exchange per step
  // Time in which a stage sums gradients with other pipelines before its update: an estimate, which
  // is part of u, and a lower bound for any pipelines. Null: 0.
  std::function<Nanoseconds(const StageRange&)> sums, sums_at_least;
  // Returns the bytes for that sum on a device, next to a micro-batch. Null: 0.
  std::function<Bytes(const StageRange&)> summed;
  std::vector<MicrobatchChoice> microbatches;  // the best choice wins
  int cut_every = 1;                           // layers: stages begin at its multiples only
  double gap = 0;                              // relative optimality gap at which the search stops
  int candidates = 8;                          // plans to return at most
  int last_pool = -1;                          // last stage's pool; -1: any
  Nanoseconds below{std::numeric_limits<int64_t>::max() / 4};  // limit of the step, in ns
  // A chain returns to the pool of its last stages only if its ends then exchange gradients sooner
  // by this time.
  Nanoseconds least_gain{};
  // nullopt: pools in any order if devices and layers are few. kAny: only with prices.
  std::optional<DeviceUse> use{};
  bool closer = false;  // whether step_bound counts memory; a few more searches
  bool explain = true;  // whether to explain misfits; else the reason is empty
};

struct PipelineStage {
  StageRange range;
  StageOption option;
  int in_flight = 0, room = 0;  // room: the most that fits in memory, at most all
  bool operator==(const PipelineStage&) const = default;
};
struct PipelinePlan {
  int choice = 0;  // into PipelineRequest::microbatches
  int microbatches = 0;
  std::vector<PipelineStage> stages;
  std::vector<BoundaryTimes> boundaries;  // one fewer
  Nanoseconds exchange;                   // X
  Nanoseconds period, predicted;
  bool operator==(const PipelinePlan&) const = default;
};

struct PipelinePlans {
  std::vector<PipelinePlan> plans;  // best first, then the best of other periods
  Nanoseconds lower_bound;          // for any `predicted`; equals the best if proved
  // Lower bound of the step of any plan by the timer (schedule/timer.h), under any schedule.
  Nanoseconds step_bound;
  int searches = 0;  // searches of all chains for one period
};

// If nothing fits, reports the stage and missing bytes of the plan that misses least. Devices may
// stay idle. The result is deterministic. Throws Error(kCaller) without layers, pools, sizes or
// micro-batches, with more than kMostCountedPools pools, or if table sizes differ.
[[nodiscard]] std::variant<PipelinePlans, Infeasible> plan_pipeline(const PipelineRequest& request);

// Returns a lower bound, with memory, of steps shorter than `below`. Stops when the bound reaches
// `enough`. Requires: one number of micro-batches.
[[nodiscard]] Nanoseconds closer_step_bound(PipelineRequest request, Nanoseconds enough);

// Returns the time in which the ends of a chain exchange `shared`; nullopt without a link.
std::optional<Nanoseconds> exchange_time(const std::optional<LinkCurve>& link, Bytes shared);

// Returns the input of the timer and h1f1b() for a plan, without X and W.
ScheduleRequest schedule_request(const PipelinePlan& plan);

// The order of calls of the stages of a plan.
struct PipelineTurns {
  std::vector<int> in_flight, deferred_weights;  // [stage], of order_calls()
  Nanoseconds step;                              // by the timer, with updates and X
};

// Returns the counts of h1f1b(), and deferral depths of weight gradients if they gain at least a
// little in the free memory. A deferring stage keeps a micro-batch as if it were in flight.
// `timings`: of each search.
PipelineTurns turns_of(const PipelinePlan& plan, int timings = 100);

// Returns the time after the schedule: the larger of the first stage's update and X.
Nanoseconds after_schedule(const PipelinePlan& plan);

}  // namespace medley
