#pragma once

// Where to cut a sequence of layers into stages, and which devices of which pool each stage gets
// (HARP, https://arxiv.org/abs/2509.24859). Knows no graphs and no plans: what a stage takes comes
// from a table of options, what a cut takes from bytes and curves of links; whether these were
// synthesised from a graph or measured elsewhere cannot be told from here.
//
//   layers   0 1 2 3 4 | 5 6 | 7 8 9         cuts    5, 7
//   devices   fast x 4   fast   slow x 8     pools   a pool's stages follow each other
//   in flight    4         3      1          at most what the memory of a stage has room for
//
// Of all chains of stages, orders of pools and periods P, with t_i the forward and backward time of
// stage i for one micro-batch, r_i the round trip over the boundary after it, c_i the longer of its
// two directions, B micro-batches:
//
//   step = sum(t_i + r_i) + (B-1) P + max(W_0, X)     P >= t_i, P >= c_i
//   W_i  = max(u_i, W_{i+1} - b_i - down_i - latency_i)             W of no stage: 0
//
// X is what the first stage takes to send its part of the gradient of parameters that the last
// layer has as well (an embedding tied to the head) to the last stage; its own part is there long
// before. W is what is left to do once the last backward is through: stage i updates in u_i while
// those before it still go backward in b, so that only the first stages' updates are waited for.
// Where gradients of weights may come late (schedule/late_weights.h), w_i of t_i, the sum is over
// max(forward, t_i - 2 w_i) of all stages but the last: an estimate, exact where all are equal.
// Memory holds N_i micro-batches on stage i, N being the fewest that hide the transfers at period P
// (counts_for_period(), schedule/period.h), and P may be longer than any stage where memory has no
// room for more.

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

// One way to run a stage. Times are for one micro-batch but for the update's, which is for a step,
// what is communicated once a step included. Bytes are those of the device that has least to spare.
struct StageOption {
  Nanoseconds forward, backward, update;
  Bytes persistent;  // parameters, gradients, optimizer state
  Bytes saved;       // for each micro-batch in flight
  Bytes transient;   // the most beyond these
  int id = 0;        // for whoever offered it
  // Of `backward`, the gradients of weights, which may come later than the rest; none: they may
  // not.
  Nanoseconds weights{};
  bool operator==(const StageOption&) const = default;
};
// Returns the options of a stage: a few, none of them worse than another in everything; none if the
// stage cannot be run like this. Asked once for each range. Times are below kLongest.
using StageOptions = std::function<std::vector<StageOption>(const StageRange&)>;
inline constexpr Nanoseconds kLongest{int64_t{1} << 40};  // 18 minutes

// How long a message occupies a link, by its size: linear between points, in proportion to the size
// before the first and behind the last. One point is a constant bandwidth.
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
  // Of meshes. Any of these whose sum is at most `devices` must find their places together, as
  // powers of two do.
  std::vector<int> sizes;
  Bytes memory;  // of a device
  // Whether all its devices send to other pools through one port: where a chain comes back to the
  // pool from another one, messages over that boundary take twice as long.
  bool one_port = false;
};

// What one micro-batch moves over the cut after a layer, skip connections included.
struct CutBytes {
  Bytes up, down;
  bool operator==(const CutBytes&) const = default;
};

// Of layers [begin, end), each of which has so many; 0 if there are none there, or nothing is said.
Bytes bytes_of(const std::vector<Bytes>& layers, int begin, int end);

// What a device of a stage has beside its gradients, so many bytes of each layer, while they are
// summed with those of other pipelines: its part, as it is sent and as it comes back.
Bytes held_while_summed(const std::vector<Bytes>& gradients, const StageRange& range);

// One way to divide the batch of a step.
struct MicrobatchChoice {
  int count = 1;
  std::vector<CutBytes> cuts;  // [layer]; one fewer than layers
  StageOptions options;
  // [layer] Stages of layers that are equal here, one after the other, have equal options, and sum
  // as long. Empty: nothing is known.
  std::vector<int> like{};
};

// How a chain may use the devices of a pool.
enum class DeviceUse : uint8_t {
  kAny,      // as many as it pays for, pools in any order
  kCounted,  // as many as there are, of the first kMostCountedPools; pools in any order
  // As many as there are, and the stages of a pool follow each other; but where the ends exchange
  // gradients, some at the front may be on the pool of the last ones.
  kOnce,
};
inline constexpr int kMostCountedPools = 8, kMostCountedDevices = (1 << 15) - 1;  // of a pool

struct PipelineRequest {
  int layers = 0;
  std::vector<PipelinePool> pools;
  std::vector<std::vector<std::optional<LinkCurve>>> links;  // [from][to]; nothing: no link
  Bytes shared;                                              // that the ends exchange once a step
  // How long a stage still sums gradients with other pipelines before it updates: about, which is
  // part of u, and at least, whatever the others are. Null: not at all.
  std::function<Nanoseconds(const StageRange&)> sums, sums_at_least;
  // What a device has for that beside a micro-batch. Null: nothing.
  std::function<Bytes(const StageRange&)> summed;
  std::vector<MicrobatchChoice> microbatches;  // the best of these is taken
  int cut_every = 1;                           // layers: stages begin at its multiples only
  double gap = 0;      // stop when no plan can be better by more than this share
  int candidates = 8;  // plans to return at most
  int last_pool = -1;  // of the last stage; -1: any
  Nanoseconds below{std::numeric_limits<int64_t>::max() / 4};  // of what plans take to be returned
  // A chain comes back to the pool of its last stages only where its ends then exchange gradients
  // sooner by as much.
  Nanoseconds least_gain{};
  // Nothing: in any order where devices and layers are few. kAny: of chains with prices only.
  std::optional<DeviceUse> use{};
  bool closer = false;  // whether step_bound counts memory, too, which takes a few more searches
  bool explain = true;  // whether to find out what does not fit; else the reason is empty
};

struct PipelineStage {
  StageRange range;
  StageOption option;
  int in_flight = 0, room = 0;  // room: the most that memory holds, at most all micro-batches
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
  std::vector<PipelinePlan> plans;  // the best, then others that were best for their period
  Nanoseconds lower_bound;  // of what is predicted for any plan; that of the best, if it is proved
  // Of what any plan of these options takes by the timer (schedule/timer.h), under any schedule.
  Nanoseconds step_bound;
  int searches = 0;  // of all chains for one period
};

// If nothing fits, says which stage misses how many bytes in the plan that misses least. Devices
// may be left idle. Deterministic. Throws Error(kCaller) for a request without layers, pools, sizes
// or micro-batches, with more than kMostCountedPools pools, or whose tables have other sizes.
[[nodiscard]] std::variant<PipelinePlans, Infeasible> plan_pipeline(const PipelineRequest& request);

// What any step takes at least that is shorter than `below`, memory counted; once it is shown to be
// `enough`, no closer. Requires: one number of micro-batches.
[[nodiscard]] Nanoseconds closer_step_bound(PipelineRequest request, Nanoseconds enough);

// How long the ends of a chain exchange so many bytes; nothing if there is no link.
std::optional<Nanoseconds> exchange_time(const std::optional<LinkCurve>& link, Bytes shared);

// What the timer and h1f1b() need to judge a plan, X and W left out.
ScheduleRequest schedule_request(const PipelinePlan& plan);

// How the stages of a plan take turns.
struct PipelineTurns {
  std::vector<int> in_flight, late_weights;  // [stage], of order_calls()
  Nanoseconds step;                          // by the timer, with updates and X
};

// Returns the counts of h1f1b(), and how late gradients of weights come if that gains anything to
// speak of, in the memory that is left: who is late keeps a micro-batch as if it were in flight.
// `timings`: of each search.
PipelineTurns turns_of(const PipelinePlan& plan, int timings = 100);

// Returns what follows behind that: the first stage's update, or X if that takes longer.
Nanoseconds after_schedule(const PipelinePlan& plan);

}  // namespace medley
