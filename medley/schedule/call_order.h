#pragma once

// The order in which the stages of a pipeline run forward and backward on micro-batches. Knows no
// times, no devices and no functions but these: prologue and update come before and after.

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

// A backward pass computes the gradient for the stage before and the gradients of the stage's
// weights. The latter have no reader in the pass, so a separate call may compute them later.
enum class PipelineFunction : uint8_t { kForward, kBackward, kWeights };

// One entry of an order. Several micro-batches are interleaved: while one waits for an exchange
// inside the stage, another computes (program/call_parts.h).
struct PipelineCall {
  PipelineFunction function = PipelineFunction::kForward;
  int microbatch = 0;  // the first
  int count = 1;       // number of micro-batches
  bool operator==(const PipelineCall&) const = default;
};
constexpr PipelineCall forward(int microbatch) { return {PipelineFunction::kForward, microbatch}; }
constexpr PipelineCall backward(int microbatch) {
  return {PipelineFunction::kBackward, microbatch};
}
constexpr PipelineCall weights(int microbatch) { return {PipelineFunction::kWeights, microbatch}; }
std::string to_string(const PipelineCall& call);  // "F3", "B0", "W0", two interleaved ones: "F3-4"

using StageOrder = std::vector<PipelineCall>;    // order of one stage
using PipelineOrder = std::vector<StageOrder>;   // [stage]
std::string to_string(const StageOrder& order);  // "F0 F1 B0 B1"

// Returns the order in which stage i has N_i = in_flight[i] micro-batches (at most all) between the
// start of their forward and the end of their backward. The stage runs N_i - 1 warm-up forwards,
// then alternates forward and backward, then runs the remaining backwards.
//
//   in_flight [3, 2, 1], 4 micro-batches
//   s0  F0 F1 F2 B0 F3 B1 B2 B3
//   s1  F0 F1 B0 F2 B1 F3 B2 B3
//   s2  F0 B0 F1 B1 F2 B2 F3 B3
//
// Such an order never deadlocks if counts do not grow along the pipeline: a stage with more in
// flight than the one before would wait forever. Throws Error(kCaller) for counts that grow or are
// below 1, as in a user's plan. Requires: microbatches >= 1.
//
PipelineOrder order_calls(const std::vector<int>& in_flight, int microbatches);

// Returns the order in which stage i defers the weight gradients of at most late[i] micro-batches.
// At this limit the oldest are computed, and at the end all of them. With 0, backward is one call.
// Deferral on the first stage gains nothing, since it sends no gradients.
//
//   in_flight [3, 2, 1], late [0, 1, 2], 4 micro-batches
//   s0  F0 F1 F2 B0 F3 B1 B2 B3
//   s1  F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3
//   s2  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3
//
// Requires: the order has whole calls, and `late` an entry of at least 0 for each stage.
PipelineOrder with_deferred_weights(PipelineOrder order, const std::vector<int>& late);

// Returns whether weight gradients have calls of their own; then the last call is one.
inline bool has_weights(const StageOrder& order) {
  return !order.empty() && order.back().function == PipelineFunction::kWeights;
}

// Returns the order of a stage without neighbours with `of` interleaved micro-batches per forward,
// then per backward: "F0-1 B0-1 F2 B2" for two of three. Requires: both are at least 1.
StageOrder order_interleaved(int of, int microbatches);

// Returns the counts capped at limits[i] (none if empty) and at the count of the stage before.
// Throws Error(kCaller) with the stage if a limit is below 1. Requires: limits is empty or has an
// entry for each stage.
std::vector<int> capped(std::vector<int> in_flight, const std::vector<int>& limits);

// Returns the largest number in flight on each stage.
std::vector<int> peak_in_flight(const PipelineOrder& order);

// A boundary has, per direction, slots for messages that were sent but not yet read by a call; a
// call without a slot for its message does not start. With (N_i - N_{i+1} - 1) / 2 slots or fewer,
// both stages deadlock:
//
//   in_flight [4, 1], one slot           s0 cannot start F3 before s1 has taken message 2,
//   s0  F0 F1 F2 .. F3 B0 ...            s1 cannot start B1 before s0 has taken gradient 0
//   s1  F0 B0 F1 .. B1 ...
//
// Returns N_i - N_{i+1} + 1, or N_i if the next stage has as many. With these no call waits for a
// slot in the steady state.
int message_slots(int earlier, int later);
// Returns the slots of all boundaries.
std::vector<int> message_slots(const std::vector<int>& in_flight);

struct OrderLimits {
  std::vector<int> in_flight;  // [stage], by memory; empty: no limit
  std::vector<int> slots;      // [boundary]; empty: as many as needed
};

// Throws Error(kUs) with stage and micro-batch if an order is invalid. Each stage calls forward,
// then backward once per micro-batch 0..microbatches-1, then weight gradients for all or none. No
// stage exceeds its in-flight limit. The calls can run to the end, each after its stage's previous
// call, its neighbour's message and a free slot. Interleaved calls have no neighbours.
void verify(const PipelineOrder& order, int microbatches, const OrderLimits& limits = {});

}  // namespace medley
