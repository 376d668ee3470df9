#pragma once

// The calls of a stage, from the order of its schedule (schedule/call_order.h). An entry may be a
// part of a call, or interleaved calls of several micro-batches. Knows no schedule.
//
// A backward function has two parts: values for other stages, then the stage's weight gradients.
//
//   original     dx3 dw3 dx2 dw2 dx1 send dw1      dx: gradient of a layer's input,
//   send first   dx3 dx2 dx1 send | dw3 dw2 dw1    dw: of its weights
//
// Interleaved calls are cut before the waits for values of a micro-batch. Their parts alternate.
//
//   sequential   c0 p....w c1 p....w c2 c0 p....w c1 p....w c2   p: posts an exchange, w: end of
//                                                                the wait
//   interleaved  c0 p c0 p w c1 p w c1 p w c2 w c2               one computes while the other
//                0    1    0      1      0    1                  communicates
//
// Each op has the same inputs, and earlier micro-batches stay ahead. Sums over micro-batches keep
// their order, so results are bitwise equal.

#include <vector>

#include "medley/program/walk.h"
#include "medley/schedule/call_order.h"

namespace medley {

// Returns [item] whether a transfer to another stage needs it, or it waits for a received value.
std::vector<bool> needed_by_transfers(const LoweredStage& stage, const std::vector<Item>& order);

// Moves items that transfers to other stages need, and waits for received values, to the front, in
// their order.
void send_first(const LoweredStage& stage, std::vector<Item>& order);

// Returns whether all outputs of a communication are of a micro-batch: calls are cut before its
// wait.
bool brings_to_microbatch(const LoweredStage& stage, const Communication& communication);

// Adds the calls of a step, including prologues and update, of the functions that the stage has.
// Calls stay whole if they replace values or have no cut.
void add_calls(LoweredStage& stage, const StageOrder& order, int microbatches);

}  // namespace medley
