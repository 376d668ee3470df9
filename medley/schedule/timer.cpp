#include "medley/schedule/timer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr Nanoseconds kUnknown{-1};

// One direction of a boundary.
struct Link {
  std::vector<Nanoseconds> arrivals;  // [micro-batch], kUnknown until sent
  std::vector<Nanoseconds> taken;     // [n-th message]: when the call that reads it starts
  std::vector<int> number;            // [micro-batch]: n
  std::vector<TimeSpan> spans;        // [n-th message]
};

class Timer {
 public:
  Timer(const PipelineOrder& order, const PipelineTimes& times, const std::vector<int>& slots)
      : order_(order), times_(times), slots_(slots), free_at_(order.size()) {
    const size_t microbatches = times.size_of.size();
    const Link none{std::vector(microbatches, kUnknown),
                    std::vector(microbatches, kUnknown),
                    std::vector<int>(microbatches),
                    {}};
    activations_.assign(order.size() - 1, none);
    gradients_ = activations_;
    timing_.calls.resize(order.size());
  }

  // A stage is tried again whenever a neighbour has moved, until none moves.
  Timing run() {
    std::vector<size_t> stack(order_.size());
    std::iota(stack.rbegin(), stack.rend(), size_t{0});
    while (!stack.empty()) {
      const size_t stage = stack.back();
      stack.pop_back();
      bool moved = false;
      while (timing_.calls[stage].size() < order_[stage].size() && execute(stage)) moved = true;
      if (moved && stage > 0) stack.push_back(stage - 1);
      if (moved && stage + 1 < order_.size()) stack.push_back(stage + 1);
    }
    for (size_t stage = 0; stage < order_.size(); ++stage)
      MEDLEY_CHECK_EQ(timing_.calls[stage].size(), order_[stage].size());
    return finish();
  }

 private:
  // Times the next call of the stage. Returns false if what it waits for is not known yet.
  bool execute(size_t stage) {
    const PipelineCall& call = order_[stage][timing_.calls[stage].size()];
    const auto m = at(call.microbatch);
    if (call.function == PipelineFunction::kWeights) {
      take(stage, free_at_[stage], times_.sizes[at(times_.size_of[m])].stages[stage].weights);
      return true;
    }
    const bool on = call.function == PipelineFunction::kForward;
    const MicrobatchTimes& times = times_.sizes[at(times_.size_of[m])];
    Link* in = on ? link(activations_, stage, -1) : link(gradients_, stage, 0);
    Link* out = on ? link(activations_, stage, 0) : link(gradients_, stage, -1);

    Nanoseconds begin = free_at_[stage];
    if (in) {
      if (in->arrivals[m] == kUnknown) return false;
      begin = std::max(begin, in->arrivals[m]);
    }
    if (out && !slots_.empty()) {
      const auto slots = at(slots_[on ? stage : stage - 1]);
      if (out->spans.size() >= slots) {
        const Nanoseconds taken = out->taken[out->spans.size() - slots];
        if (taken == kUnknown) return false;
        begin = std::max(begin, taken);
      }
    }
    const StageTimes& own = times.stages[stage];
    const Nanoseconds end = take(stage,
                                 begin,
                                 on                           ? own.forward
                                 : has_weights(order_[stage]) ? own.backward - own.weights
                                                              : own.backward);
    if (in) in->taken[at(in->number[m])] = begin;
    if (out) {
      const BoundaryTimes& boundary = times.boundaries[on ? stage : stage - 1];
      send(*out, m, end, on ? boundary.forward : boundary.backward, boundary.latency);
    }
    return true;
  }

  // Returns when a call ends that begins then.
  Nanoseconds take(size_t stage, Nanoseconds begin, Nanoseconds time) {
    free_at_[stage] = begin + time;
    timing_.calls[stage].push_back({begin, free_at_[stage]});
    return free_at_[stage];
  }

  Link* link(std::vector<Link>& links, size_t stage, int offset) const {
    const auto boundary = static_cast<std::ptrdiff_t>(stage) + offset;
    if (boundary < 0 || boundary >= static_cast<std::ptrdiff_t>(links.size())) return nullptr;
    return &links[at(boundary)];
  }

  static void send(Link& out, size_t m, Nanoseconds ready, Nanoseconds time, Nanoseconds latency) {
    const Nanoseconds begin = out.spans.empty() ? ready : std::max(ready, out.spans.back().end);
    out.number[m] = static_cast<int>(out.spans.size());
    out.spans.push_back({begin, begin + time});
    out.arrivals[m] = begin + time + latency;
  }

  Timing finish() {
    for (const Nanoseconds end : free_at_) timing_.finish = std::max(timing_.finish, end);
    for (const std::vector<TimeSpan>& calls : timing_.calls) {
      Nanoseconds busy;
      for (const TimeSpan& call : calls) busy += call.end - call.begin;
      timing_.busy.push_back(busy);
      timing_.idle.push_back(timing_.finish - busy);
    }
    for (Link& link : activations_) timing_.activations.push_back(std::move(link.spans));
    for (Link& link : gradients_) timing_.gradients.push_back(std::move(link.spans));
    return std::move(timing_);
  }

  const PipelineOrder& order_;
  const PipelineTimes& times_;
  const std::vector<int>& slots_;
  std::vector<Nanoseconds> free_at_;           // [stage]
  std::vector<Link> activations_, gradients_;  // [boundary]
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
