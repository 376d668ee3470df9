#pragma once

// Limits of the searches for a plan. Other values change the plans found or the search time, never
// correctness. Each comment ends with the measurement of another value, in steps by the simulator
// and in CPU time, over 12 to 15 clusters of up to 128 devices. scripts/check_constants.py counts
// them.

#include <array>
#include <cstddef>
#include <cstdint>

namespace medley {

// The search for one mesh:

// Weights of overlapped message time in a decision. Not measured.
inline constexpr std::array kOverlappedCounts{1.0, 0.3};
// Price in ticks per byte at which a search minimises memory. 1e6: equal steps.
inline constexpr double kMostBytePrice = 1e3, kLeastBytePrice = 1 / kMostBytePrice;
// Factor between two prices. Not measured.
inline constexpr double kBytePriceStep = 16;
// Limit of readers for tying a value of the batch to them, and of operands for giving an op of
// small values a variable. 16 operands: equal steps.
inline constexpr size_t kMostNeighbours = 8;
// Bytes: smaller values are redistributed by each reader. 0: equal steps, up to 7 % more time.
inline constexpr double kShareBytes = 4096;
// Bytes at which groups that share links are compared with a single group. Not measured.
inline constexpr double kLongBytes = 1 << 25;
// Levels between shares by speed and equal shares of nodes. Every second level: equal steps.
inline constexpr std::array kNodeLevels{0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0};
// Possible gain, as a share of a step, that justifies other shares of nodes or two interleaved
// micro-batches. 0.01, 0.05: equal steps.
inline constexpr double kWorthTrying = 0.02;
// Micro-batches. More are tried only if parameters and inputs fit, and without a feasibility check
// first. 16,384: equal steps. 64 for the latter: equal time.
inline constexpr int64_t kManyMicrobatches = 1024;

// The search among candidates:

// Pools of devices. Each doubles the time of a search over chains. Not measured.
inline constexpr size_t kManyPools = 8;
// Micro-batches simulated beyond three times those in flight. Not measured.
inline constexpr int64_t kFull = 8;
// Up to this multiple of that number, all micro-batches are simulated: one pipeline, several. 2 in
// one pipeline: a step of 64 micro-batches is 3 % longer than predicted.
inline constexpr int64_t kManyTimes = 4, kManyTimesOfSeveral = 2;
// Parts of a layer, with cuts between them, and the most parts by which a cut moves. Not measured.
inline constexpr int kCutParts = 4;
// Plans whose cuts are moved; half of them are simulated. 2: one of four steps is 1.4 % longer.
inline constexpr size_t kClimbers = 4;
// Grids that are simulated. One: equal steps.
inline constexpr int kMostSimulated = 4;
// A grid is skipped if this share of an estimate exceeds the step to beat: by the flops of a stage,
// or by sums over its layers, which a whole stage may beat. 1, and no sums: 72 % more time.
inline constexpr double kOfBound = 0.9;

// Share of a run's time for state replicas, as a divisor (docs/howto/elastic.md).
inline constexpr int64_t kShareOfCopies = 50;

}  // namespace medley
