#pragma once

// The calls of a stage, from the order of its schedule (schedule/call_order.h): an entry of it may
// be a part of a call, or calls of several micro-batches at once. Knows no schedule.
//
// A backward function has two parts: what other stages wait for, and behind it the gradients of the
// stage's own weights.
//
//   as it is     dx3 dw3 dx2 dw2 dx1 send dw1      dx: of what a layer has read, dw: of its weights
//   send first   dx3 dx2 dx1 send | dw3 dw2 dw1
//
// Calls at once are cut in front of the waits for what is of a micro-batch, and their parts take
// turns.
//
//   in turn   c0 p....w c1 p....w c2 c0 p....w c1 p....w c2   p: posts an exchange, w: has
//                                                             awaited it
//   at once   c0 p c0 p w c1 p w c1 p w c2 w c2               what one waits for travels
//             0    1    0      1      0    1                  while the other computes
//
// Each op finds the same, and earlier micro-batches stay ahead, so that sums over micro-batches add
// in one order: results have the same bits.

#include <vector>

#include "medley/program/walk.h"
#include "medley/schedule/call_order.h"

namespace medley {

// [item] whether a transfer to another stage needs it, or it waits for what another one sends.
std::vector<bool> needed_by_transfers(const LoweredStage& stage, const std::vector<Item>& order);

// Puts what transfers to other stages need first, and the waits for what others send, in the order
// in which they are.
void send_first(const LoweredStage& stage, std::vector<Item>& order);

// Returns whether all that a communication brings is of a micro-batch: calls are cut in front of
// the wait for it.
bool brings_to_microbatch(const LoweredStage& stage, const Communication& communication);

// Adds the calls of a step, prologues and update too, of those functions that the stage has. Calls
// stay whole that replace values, or have nothing in front of which they are cut.
void add_calls(LoweredStage& stage, const StageOrder& order, int microbatches);

}  // namespace medley
