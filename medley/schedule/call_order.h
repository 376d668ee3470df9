#pragma once

// The order in which the stages of a pipeline go forward and backward on micro-batches. Knows no
// times, no devices and no functions but these: prologue and update stand before and after.

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

// A backward pass makes what the stage before waits for, and the gradients of the stage's own
// weights, for which nobody waits: these may come later, as a call of their own.
enum class PipelineFunction : uint8_t { kForward, kBackward, kWeights };

// One entry of an order. Several micro-batches are at once: while one waits for an exchange inside
// of the stage, another computes, so that their parts take turns (program/call_parts.h).
struct PipelineCall {
  PipelineFunction function = PipelineFunction::kForward;
  int microbatch = 0;  // the first
  int count = 1;       // of micro-batches
  bool operator==(const PipelineCall&) const = default;
};
constexpr PipelineCall forward(int microbatch) { return {PipelineFunction::kForward, microbatch}; }
constexpr PipelineCall backward(int microbatch) {
  return {PipelineFunction::kBackward, microbatch};
}
constexpr PipelineCall weights(int microbatch) { return {PipelineFunction::kWeights, microbatch}; }
std::string to_string(const PipelineCall& call);  // "F3", "B0", "W0", of two at once "F3-4"

using StageOrder = std::vector<PipelineCall>;    // of one stage
using PipelineOrder = std::vector<StageOrder>;   // of all, from the first stage to the last
std::string to_string(const StageOrder& order);  // "F0 F1 B0 B1"

// Returns the order in which stage i has N_i = in_flight[i] micro-batches between the start of
// their forward and the end of their backward, or all of them if there are fewer: N_i - 1 forwards
// to warm up, then forward and backward in turn, then the backwards that are left.
//
//   in_flight [3, 2, 1], 4 micro-batches
//   s0  F0 F1 F2 B0 F3 B1 B2 B3
//   s1  F0 F1 B0 F2 B1 F3 B2 B3
//   s2  F0 B0 F1 B1 F2 B2 F3 B3
//
// Such an order never deadlocks if counts do not grow along the pipeline: a stage that asks for
// more than the one before has in flight waits for it for ever. Throws Error(kCaller) for counts
// that grow or are below 1, which may come from a person's plan. Requires: microbatches >= 1.
//
PipelineOrder order_calls(const std::vector<int>& in_flight, int microbatches);

// Returns the order in which, of stage i, late[i] micro-batches at most have gone backward without
// the gradients of weights: as soon as it is so many, those of the first of them are made, and at
// the end those of all. With 0, backward is one call as a whole. The first stage sends nothing, so
// nobody gains if it has any.
//
//   in_flight [3, 2, 1], late [0, 1, 2], 4 micro-batches
//   s0  F0 F1 F2 B0 F3 B1 B2 B3
//   s1  F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3
//   s2  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3
//
// Requires: the order has whole calls, and `late` an entry of at least 0 for each stage.
PipelineOrder with_late_weights(PipelineOrder order, const std::vector<int>& late);

// Whether gradients of weights are calls of their own: then such a call is the last one.
inline bool has_weights(const StageOrder& order) {
  return !order.empty() && order.back().function == PipelineFunction::kWeights;
}

// Returns the order in which a stage without neighbours goes forward on so many micro-batches at
// once, then backward on them, and so on: "F0-1 B0-1 F2 B2" for two of three. Requires: both are at
// least 1.
StageOrder order_at_once(int of, int microbatches);

// Returns the counts held to limits[i] (none if empty), and to the count of the stage before.
// Throws Error(kCaller) if a limit is below 1, naming the stage.
// Requires: limits is empty or has an entry for each stage.
std::vector<int> capped(std::vector<int> in_flight, const std::vector<int>& limits);

// Returns the most micro-batches that each stage has in flight.
std::vector<int> peak_in_flight(const PipelineOrder& order);

// A boundary has as many slots in each direction as messages may be there that were sent and not
// yet taken by the call that reads them; a call that would send one more does not start. With
// (N_i - N_{i+1} - 1) / 2 slots or fewer, both stages stop for ever:
//
//   in_flight [4, 1], one slot           s0 cannot start F3 before s1 has taken message 2,
//   s0  F0 F1 F2 .. F3 B0 ...            s1 cannot start B1 before s0 has taken gradient 0
//   s1  F0 B0 F1 .. B1 ...
//
// Returns N_i - N_{i+1} + 1, or N_i where the next stage has as many: with these no call waits for
// a slot once the pipeline is full.
int message_slots(int earlier, int later);
// The same of all boundaries.
std::vector<int> message_slots(const std::vector<int>& in_flight);

struct OrderLimits {
  std::vector<int> in_flight;  // [stage], of memory; empty: none
  std::vector<int> slots;      // [boundary]; empty: as many as are needed
};

// Throws Error(kUs), naming stage and micro-batch, unless every stage calls forward and backward
// once for each of the micro-batches 0..microbatches-1, backward later, the gradients of weights
// behind that, for all of them or for none, no stage has more in flight than its limit, and the
// calls can be executed to the end, each waiting for its own stage's call before, for its message
// from the neighbour and for a slot of what it sends. Calls of several micro-batches at once have
// no neighbours.
void verify(const PipelineOrder& order, int microbatches, const OrderLimits& limits = {});

}  // namespace medley
