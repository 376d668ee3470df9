#pragma once

// Limits of the searches for a plan: another value is as right, and finds other plans, or finds
// them sooner or later. Each line ends with the measurement of another value, of steps by the
// simulator and processor time of 12 to 15 clusters of up to 128 devices, or says that there is
// none. scripts/check_constants.py counts them.

#include <array>
#include <cstddef>
#include <cstdint>

namespace medley {

// Of one mesh.
// The shares that count of what runs beside ops. Not measured.
inline constexpr std::array kOverlappedCounts{1.0, 0.3};
// The price of a byte, in ticks, at which a search holds as little as possible. 1e6: equal steps.
inline constexpr double kMostBytePrice = 1e3, kLeastBytePrice = 1 / kMostBytePrice;
// Between prices. Not measured.
inline constexpr double kBytePriceStep = 16;
// A value of the batch with more readers is not tied to them, an op of small values with more
// operands has no variable. 16 operands: equal steps.
inline constexpr size_t kMostNeighbours = 8;
// Readers of a smaller value convert it each for itself. 0: equal steps, at most 7 % more time.
inline constexpr double kShareBytes = 4096;
// Groups that share links are compared with one alone at so many bytes. Not measured.
inline constexpr double kLongBytes = 1 << 25;
// Between shares by speed and as much for every node. Every second one: equal steps.
inline constexpr std::array kNodeLevels{0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0};
// Of a step, that other shares or two micro-batches at once may gain at most. 0.01, 0.05: equal
// steps.
inline constexpr double kWorthTrying = 0.02;
// Micro-batches: more are tried only where parameters and inputs leave room for them, and with more
// it is not asked whether anything fits. 16,384: equal steps. 64 for the latter: equal time.
inline constexpr int64_t kManyMicrobatches = 1024;

// Of candidates.
// Pools of devices: the time of a search over chains doubles with each. Not measured.
inline constexpr size_t kManyPools = 8;
// Micro-batches simulated beyond three times those in flight. Not measured.
inline constexpr int64_t kFull = 8;
// All are simulated up to so many times as many; of several pipelines, which take longer. 2 for the
// former: of 64 micro-batches a step is 3 % longer than predicted.
inline constexpr int64_t kManyTimes = 4, kManyTimesOfSeveral = 2;
// Of a layer, between which cuts may lie, and over which they move at once. Not measured.
inline constexpr int kCutParts = 4;
// Plans whose cuts are moved, half of which are simulated. 2: one of four steps is 1.4 % longer.
inline constexpr size_t kClimbers = 4;
// Grids that are simulated. One: equal steps.
inline constexpr int kMostSimulated = 4;

// Of grids: so much of what the flops of a stage's layers take, since ops differ in what they
// reach, and of what layers take one by one, which may be more than what they take together. 1, and
// layers not looked at: 72 % more time.
inline constexpr double kOfBound = 0.9;

// Of steps and copies: these take one part in so many of the time, as docs/howto/elastic.md has it.
inline constexpr int64_t kShareOfCopies = 50;

}  // namespace medley
