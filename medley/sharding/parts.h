#pragma once

// Division of an extent over the devices of an axis: named parts, and the rows of micro-batches.

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

// A named division of an extent over the devices of an axis. Exact lengths fit only extents of
// their sum. Shares fit any extent and are apportioned to minimise the largest length per share.
// Zeros are allowed. Reserved names: "rows", for the batch, with the lengths of the micro-batches,
// and "even".
struct Part {
  std::string name;
  std::vector<int64_t> lengths;  // one of the two is empty
  std::vector<double> shares;
  bool operator==(const Part&) const = default;
};

// One micro-batch of a pipeline: its rows, and their division over the first axis of the first
// stage. `lengths` is empty for a replicated batch. A device with fewer micro-batches has zeros in
// the others.
struct Microbatch {
  int64_t rows = 0;
  std::vector<int64_t> lengths;
  bool operator==(const Microbatch&) const = default;
};

// Divides `total` into integers in proportion to `shares` and minimises max(length / share). If
// shares are speeds, this minimises the slowest device's time. Ties go to the lower index; a share
// of zero gets zero. Requires: total >= 0, no share negative, one of them positive unless total is
// 0.
std::vector<int64_t> apportion(int64_t total, const std::vector<double>& shares);

// Returns the lengths of a part for a factor of `size` elements. `microbatch` is used for "rows".
// Throws Error(kCaller) if exact lengths do not add up to the size.
std::vector<int64_t> part_lengths(const Part& part,
                                  int64_t size,
                                  int devices,
                                  const Microbatch& microbatch);

// Returns a micro-batch of fewer rows, divided in proportion to `planned`: no device has more rows
// than planned.
Microbatch of_fewer_rows(const Microbatch& planned, int64_t rows);

}  // namespace medley
