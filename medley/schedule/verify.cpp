#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/schedule/call_order.h"

namespace medley {
namespace {

[[noreturn]] void refuse(size_t stage, const std::string& what) {
  throw Error(Blame::kUs, fmt::format("schedule: stage {}: {}", stage, what));
}

void check_calls(size_t stage, const StageOrder& calls, int microbatches, int limit) {
  std::vector<int> forwards(at(microbatches)), backwards(forwards), weights(forwards);
  const bool has_weights = std::ranges::any_of(
      calls, [](const PipelineCall& call) { return call.function == PipelineFunction::kWeights; });
  int in_flight = 0;
  StageOrder single;  // interleaved calls, one per micro-batch
  for (const PipelineCall& call : calls)
    for (int m = 0; m < call.count; ++m) single.push_back({call.function, call.microbatch + m});
  for (const PipelineCall& call : single) {
    if (call.microbatch < 0 || call.microbatch >= microbatches)
      refuse(stage, fmt::format("{} of {} micro-batches", to_string(call), microbatches));
    const auto m = at(call.microbatch);
    const bool is_forward = call.function == PipelineFunction::kForward;
    const bool is_weights = call.function == PipelineFunction::kWeights;
    if ((is_forward ? forwards : is_weights ? weights : backwards)[m]++)
      refuse(stage, fmt::format("{} is called twice", to_string(call)));
    if (!is_forward && !forwards[m])
      refuse(stage, fmt::format("{} comes before F{}", to_string(call), m));
    if (is_weights && !backwards[m])
      refuse(stage, fmt::format("{} comes before B{}", to_string(call), m));
    if (is_weights) continue;
    in_flight += is_forward ? 1 : -1;
    if (in_flight > limit)
      refuse(stage,
             fmt::format("{} makes {} micro-batches in flight, there is memory for {}",
                         to_string(call),
                         in_flight,
                         limit));
  }
  for (size_t m = 0; m < forwards.size(); ++m)
    if (!forwards[m] || !backwards[m] || (has_weights && !weights[m]))
      refuse(stage,
             fmt::format("{}{} is missing",
                         !forwards[m]    ? 'F'
                         : !backwards[m] ? 'B'
                                         : 'W',
                         m));
}

// Messages sent over a boundary in one direction.
struct Messages {
  std::vector<bool> sent;  // [micro-batch]
  int waiting = 0;
};

// Executes the calls without times, in any order that messages and slots allow.
class Execution {
 public:
  Execution(const PipelineOrder& order, int microbatches, const std::vector<int>& slots)
      : order_(order), slots_(slots), positions_(order.size()) {
    const std::vector<bool> none(at(microbatches));
    activations_.assign(order.size(), {none, 0});
    gradients_ = activations_;
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < order_.size(); ++stage)
        while (positions_[stage] < order_[stage].size() && obstacle(stage).empty()) {
          execute(stage);
          moved = true;
        }
    }
    std::string stuck;
    for (size_t stage = 0; stage < order_.size(); ++stage)
      if (positions_[stage] < order_[stage].size())
        stuck += fmt::format("; stage {} cannot start {}, which waits for {}",
                             stage,
                             to_string(order_[stage][positions_[stage]]),
                             obstacle(stage));
    if (!stuck.empty()) throw Error(Blame::kUs, "schedule: deadlock" + stuck);
  }

 private:
  bool goes_forward(size_t stage) const {
    return order_[stage][positions_[stage]].function == PipelineFunction::kForward;
  }
  size_t microbatch(size_t stage) const { return at(order_[stage][positions_[stage]].microbatch); }
  bool is_alone(size_t stage) const {
    return order_[stage][positions_[stage]].function == PipelineFunction::kWeights;
  }
  // Return the messages that a stage's next call reads and sends; null at the ends of the pipeline.
  Messages* read(size_t stage) {
    if (is_alone(stage)) return nullptr;
    if (goes_forward(stage)) return stage == 0 ? nullptr : &activations_[stage - 1];
    return stage + 1 == order_.size() ? nullptr : &gradients_[stage];
  }
  Messages* sent(size_t stage) {
    if (is_alone(stage)) return nullptr;
    if (goes_forward(stage)) return stage + 1 == order_.size() ? nullptr : &activations_[stage];
    return stage == 0 ? nullptr : &gradients_[stage - 1];
  }

  // Returns the obstacle of the next call, empty if it can start.
  std::string obstacle(size_t stage) {
    const bool on = goes_forward(stage);
    const size_t m = microbatch(stage);
    if (const Messages* in = read(stage); in && !in->sent[m])
      return fmt::format("{}{} of stage {}", on ? 'F' : 'B', m, on ? stage - 1 : stage + 1);
    const size_t boundary = on ? stage : stage - 1;
    if (const Messages* out = sent(stage);
        out && !slots_.empty() && out->waiting >= slots_[boundary])
      return fmt::format(
          "one of the {} slots to stage {}", slots_[boundary], on ? stage + 1 : stage - 1);
    return "";
  }

  void execute(size_t stage) {
    const size_t m = microbatch(stage);
    if (Messages* in = read(stage)) --in->waiting;
    if (Messages* out = sent(stage)) {
      out->sent[m] = true;
      ++out->waiting;
    }
    ++positions_[stage];
  }

  const PipelineOrder& order_;
  const std::vector<int>& slots_;
  std::vector<size_t> positions_;
  std::vector<Messages> activations_, gradients_;  // [boundary]
};

}  // namespace

void verify(const PipelineOrder& order, int microbatches, const OrderLimits& limits) {
  MEDLEY_CHECK(microbatches >= 1 && !order.empty());
  MEDLEY_CHECK(limits.in_flight.empty() || limits.in_flight.size() == order.size());
  MEDLEY_CHECK(limits.slots.empty() || limits.slots.size() + 1 == order.size());
  for (size_t stage = 0; stage < order.size(); ++stage) {
    for (const PipelineCall& call : order[stage])
      if (call.count != 1 && (call.count < 1 || order.size() > 1))
        refuse(stage, fmt::format("{} has {} at once", to_string(call), call.count));
    check_calls(stage,
                order[stage],
                microbatches,
                limits.in_flight.empty() ? microbatches : limits.in_flight[stage]);
  }
  if (order.size() > 1) Execution(order, microbatches, limits.slots).run();
}

}  // namespace medley
