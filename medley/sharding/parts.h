#pragma once

// How an extent is divided over the devices of an axis: named parts, and the rows of micro-batches.

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

// A named way to divide an extent over the devices of an axis. Exact lengths fit only extents of
// their sum; shares fit any extent (apportioned so that the largest length per share is smallest).
// Either may hold zeros. Two names are reserved: "rows", for the batch, whose lengths are those of
// the micro-batches, and "even".
struct Part {
  std::string name;
  std::vector<int64_t> lengths;  // one of the two is empty
  std::vector<double> shares;
  bool operator==(const Part&) const = default;
};

// One micro-batch of a pipeline: its rows, and how many of them each device of the first stage's
// first axis takes. `lengths` is empty where the batch is replicated. Zeros are allowed: a device
// with fewer micro-batches has zeros in the others.
struct Microbatch {
  int64_t rows = 0;
  std::vector<int64_t> lengths;
  bool operator==(const Microbatch&) const = default;
};

// Divides `total` into integers in proportion to `shares` so that max(length / share) is smallest:
// if the shares are speeds, the slowest device is done as early as possible. Ties go to the lower
// index; a share of zero gets zero.
// Requires: total >= 0, no share negative, one of them positive unless total is 0.
std::vector<int64_t> apportion(int64_t total, const std::vector<double>& shares);

// Returns the lengths of a part over `devices` devices for a factor of `size` elements. For "rows"
// give the micro-batch. Throws Error(kCaller) if exact lengths do not add up to the size.
std::vector<int64_t> part_lengths(const Part& part,
                                  int64_t size,
                                  int devices,
                                  const Microbatch& microbatch);

// Returns a micro-batch of fewer rows, which its devices divide like the planned ones: none has
// more of them than planned.
Microbatch of_fewer_rows(const Microbatch& planned, int64_t rows);

}  // namespace medley
