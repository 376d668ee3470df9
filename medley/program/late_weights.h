#pragma once

// A backward function in two parts: what other stages wait for, and behind it the gradients of the
// stage's own weights. Calls of the parts may then be apart (schedule/call_order.h).
//
//   as it is     dx3 dw3 dx2 dw2 dx1 send dw1      dx: of what a layer has read, dw: of its weights
//   send first   dx3 dx2 dx1 send | dw3 dw2 dw1
//
// Each op is the same and finds the same, so results have the same bits. What the second part reads
// lives longer.

#include <vector>

#include "medley/program/walk.h"
#include "medley/schedule/call_order.h"

namespace medley {

// [item] whether a transfer to another stage needs it, or it waits for what another one sends.
std::vector<bool> needed_by_transfers(const LoweredStage& stage, const std::vector<Item>& order);

// Puts what transfers to other stages need first, and the waits for what others send, in the order
// in which they are.
void send_first(const LoweredStage& stage, std::vector<Item>& order);

// Adds the call of a part of a backward function: up to its last transfer, or behind it. Where one
// of them is empty, the first adds all, and the second nothing.
void add_part(LoweredStage& stage, FunctionKind kind, const PipelineCall& call);

}  // namespace medley
