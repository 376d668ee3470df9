#include "medley/schedule/timer.h"

#include <algorithm>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr Nanoseconds kUnknown{-1};

// One direction of a boundary.
struct Link {
  std::vector<Nanoseconds> arrivals;  // [micro-batch], kUnknown until sent
  Nanoseconds free_at;                // end of the last message
  size_t sent = 0;
  // Used with slots only.
  std::vector<Nanoseconds> taken;  // [n-th message] start of the call that reads it
  std::vector<int> number;         // [micro-batch]: n
  std::vector<TimeSpan> spans;     // [n-th message]
};

class Timer {
 public:
  Timer(const PipelineOrder& order, const PipelineTimes& times, const std::vector<int>& slots)
      : order_(order),
        times_(times),
        slots_(slots),
        next_(order.size(), 0),
        last_(order.size()),
        timing_{{}, std::vector<Nanoseconds>(order.size()), {}, {}, {}, {}} {
    const size_t microbatches = times.size_of.size();
    Link none;
    none.arrivals.assign(microbatches, kUnknown);
    if (!slots.empty()) {
      none.taken = none.arrivals;
      none.number.resize(microbatches);
    }
    activations_.assign(order.size() - 1, none);
    gradients_ = activations_;
    for (const StageOrder& stage : order) {
      has_weights_.push_back(has_weights(stage));
      timing_.calls.emplace_back().reserve(stage.size());
    }
  }

  // Forward calls propagate from the first stage to the last, backward calls the other way. Each
  // stage advances as far as it can, up and down, until none moves.
  Timing run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < order_.size(); ++stage) moved |= go_on(stage);
      for (size_t stage = order_.size(); stage-- > 0;) moved |= go_on(stage);
    }
    for (size_t stage = 0; stage < order_.size(); ++stage) {
      MEDLEY_CHECK_EQ(next_[stage], order_[stage].size());
      timing_.finish = std::max(timing_.finish, last_[stage]);
    }
    for (const Nanoseconds busy : timing_.busy) timing_.idle.push_back(timing_.finish - busy);
    for (Link& link : activations_) timing_.activations.push_back(std::move(link.spans));
    for (Link& link : gradients_) timing_.gradients.push_back(std::move(link.spans));
    return std::move(timing_);
  }

 private:
  // Returns whether the stage moved.
  bool go_on(size_t stage) {
    const size_t before = next_[stage];
    while (next_[stage] < order_[stage].size() && execute(stage)) ++next_[stage];
    return next_[stage] > before;
  }

  // Times the next call of the stage. Returns false if an input's time is unknown.
  bool execute(size_t stage) {
    const PipelineCall& call = order_[stage][next_[stage]];
    const auto m = at(call.microbatch);
    const MicrobatchTimes& times = times_.sizes[at(times_.size_of[m])];
    const StageTimes& own = times.stages[stage];
    if (call.function == PipelineFunction::kWeights) {
      take(stage, last_[stage], own.weights);
      return true;
    }
    const bool on = call.function == PipelineFunction::kForward;
    Link* in = on ? link(activations_, stage, -1) : link(gradients_, stage, 0);
    Link* out = on ? link(activations_, stage, 0) : link(gradients_, stage, -1);

    Nanoseconds begin = last_[stage];
    if (in) {
      if (in->arrivals[m] == kUnknown) return false;
      begin = std::max(begin, in->arrivals[m]);
    }
    if (out && !slots_.empty()) {
      const auto slots = at(slots_[on ? stage : stage - 1]);
      if (out->sent >= slots) {
        const Nanoseconds taken = out->taken[out->sent - slots];
        if (taken == kUnknown) return false;
        begin = std::max(begin, taken);
      }
    }
    Nanoseconds time;
    for (size_t i = m; i < m + at(call.count); ++i) {
      const StageTimes& each = times_.sizes[at(times_.size_of[i])].stages[stage];
      time += on ? each.forward : each.backward;
      if (!on && has_weights_[stage]) time = time - each.weights;
    }
    const Nanoseconds end = take(stage, begin, time);
    if (in && !slots_.empty()) in->taken[at(in->number[m])] = begin;
    if (out) {
      const BoundaryTimes& boundary = times.boundaries[on ? stage : stage - 1];
      send(*out, m, end, on ? boundary.forward : boundary.backward, boundary.latency);
    }
    return true;
  }

  // Returns the end of a call that begins at `begin`.
  Nanoseconds take(size_t stage, Nanoseconds begin, Nanoseconds time) {
    last_[stage] = begin + time;
    timing_.busy[stage] += time;
    timing_.calls[stage].push_back({begin, last_[stage]});
    return last_[stage];
  }

  Link* link(std::vector<Link>& links, size_t stage, int offset) const {
    const auto boundary = static_cast<std::ptrdiff_t>(stage) + offset;
    if (boundary < 0 || boundary >= static_cast<std::ptrdiff_t>(links.size())) return nullptr;
    return &links[at(boundary)];
  }

  void send(Link& out, size_t m, Nanoseconds ready, Nanoseconds time, Nanoseconds latency) const {
    const Nanoseconds begin = std::max(ready, out.free_at);
    out.free_at = begin + time;
    out.arrivals[m] = out.free_at + latency;
    if (!slots_.empty()) out.number[m] = static_cast<int>(out.sent);
    out.spans.push_back({begin, out.free_at});
    ++out.sent;
  }

  const PipelineOrder& order_;
  const PipelineTimes& times_;
  const std::vector<int>& slots_;
  std::vector<char> has_weights_;              // [stage]
  std::vector<size_t> next_;                   // [stage] call
  std::vector<Link> activations_, gradients_;  // [boundary]
  std::vector<Nanoseconds> last_;              // [stage] end of its last call
  Timing timing_;
};

}  // namespace

PipelineTimes equal_microbatches(MicrobatchTimes times, int microbatches) {
  return {{std::move(times)}, std::vector<int>(at(microbatches))};
}

void verify(const PipelineTimes& times) {
  MEDLEY_CHECK(!times.sizes.empty() && !times.size_of.empty() && times.num_stages() > 0);
  for (const MicrobatchTimes& size : times.sizes) {
    MEDLEY_CHECK_EQ(size.stages.size(), times.num_stages());
    MEDLEY_CHECK_EQ(size.boundaries.size() + 1, times.num_stages());
    for (const StageTimes& s : size.stages)
      MEDLEY_CHECK(s.forward.value >= 0 && s.weights.value >= 0 && s.backward >= s.weights);
    for (const BoundaryTimes& b : size.boundaries)
      MEDLEY_CHECK(b.forward.value >= 0 && b.backward.value >= 0 && b.latency.value >= 0);
  }
  for (const int size : times.size_of) MEDLEY_CHECK(size >= 0 && at(size) < times.sizes.size());
}

double Timing::bubble() const {
  const Nanoseconds lost = std::accumulate(idle.begin(), idle.end(), Nanoseconds{});
  return finish.value == 0 ? 0 : lost / (finish * static_cast<int64_t>(idle.size()));
}

Timing time_calls(const PipelineOrder& order,
                  const PipelineTimes& times,
                  const std::vector<int>& slots) {
  MEDLEY_CHECK_EQ(order.size(), times.num_stages());
  MEDLEY_CHECK(slots.empty() || slots.size() + 1 == order.size());
  return Timer(order, times, slots).run();
}

}  // namespace medley
