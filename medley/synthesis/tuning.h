#pragma once

// Limits of the searches for a plan. Another value finds other plans, or finds them sooner or
// later; every plan found is right. Each comment ends with the measurement of another value, in
// steps by the simulator and in processor time, over 12 to 15 clusters of up to 128 devices.
// scripts/check_constants.py counts them.

#include <array>
#include <cstddef>
#include <cstdint>

namespace medley {

// The search for one mesh:

// Shares of the time of messages beside ops that count in a decision. Not measured.
inline constexpr std::array kOverlappedCounts{1.0, 0.3};
// The price of a byte, in ticks, at which a search holds as little as possible. 1e6: equal steps.
inline constexpr double kMostBytePrice = 1e3, kLeastBytePrice = 1 / kMostBytePrice;
// The factor between two prices. Not measured.
inline constexpr double kBytePriceStep = 16;
// A value of the batch with more readers is not tied to them; an op of small values with more
// operands has no variable. 16 operands: equal steps.
inline constexpr size_t kMostNeighbours = 8;
// Bytes: each reader of a smaller value converts it by itself. 0: equal steps, up to 7 % more time.
inline constexpr double kShareBytes = 4096;
// Bytes at which groups that share links are compared with one group alone. Not measured.
inline constexpr double kLongBytes = 1 << 25;
// Levels between shares by speed and equal shares of nodes. Every second level: equal steps.
inline constexpr std::array kNodeLevels{0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0};
// The possible gain, as a share of a step, from which other shares of nodes, or two micro-batches
// at once, are tried. 0.01, 0.05: equal steps.
inline constexpr double kWorthTrying = 0.02;
// Micro-batches. Beyond, more are tried only where parameters and inputs leave room, and the search
// does not ask first whether anything fits. 16,384: equal steps. 64 for the latter: equal time.
inline constexpr int64_t kManyMicrobatches = 1024;

// The search among candidates:

// Pools of devices. Each doubles the time of a search over chains. Not measured.
inline constexpr size_t kManyPools = 8;
// Micro-batches that are simulated beyond three times those in flight. Not measured.
inline constexpr int64_t kFull = 8;
// Up to so many times as many micro-batches are all simulated: in one pipeline, in several. 2 in
// one pipeline: a step of 64 micro-batches is 3 % longer than predicted.
inline constexpr int64_t kManyTimes = 4, kManyTimesOfSeveral = 2;
// Parts of a layer between which cuts may lie. A cut moves by so many parts at most. Not measured.
inline constexpr int kCutParts = 4;
// Plans whose cuts are moved; half of them are simulated. 2: one of four steps is 1.4 % longer.
inline constexpr size_t kClimbers = 4;
// Grids that are simulated. One: equal steps.
inline constexpr int kMostSimulated = 4;
// A grid is left out if this share of an estimate exceeds the step to beat: by the flops of a
// stage, or by sums over its layers, which a whole stage may beat. 1, and no sums: 72 % more time.
inline constexpr double kOfBound = 0.9;

// State replicas take one part in so many of the time of a run (docs/howto/elastic.md).
inline constexpr int64_t kShareOfCopies = 50;

}  // namespace medley
