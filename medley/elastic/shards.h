#pragma once

// Layouts of one value, each with the devices that count, and who has a cell of them.

#include <vector>

#include "medley/boxes/cells.h"
#include "medley/checkpoint/held_values.h"
#include "medley/program/program.h"

namespace medley {

// Somebody's piece of memory with a box of a value.
struct Shard {
  int device = 0;
  const Layout* layout = nullptr;
  int box = kNoBox;
  int home = -1;  // it is kept for others: into SecondHomes::homes; -1: the device's own shard
};

struct Laid {
  const Layout* layout = nullptr;
  std::vector<int> devices;  // [device of the layout] of the cluster; -1: it does not count
  std::vector<int> homes{};  // likewise, where these are kept for others
};

// One for each stage that has some of it; without `counts` all devices do.
std::vector<Laid> laid_out(const HeldValue& value,
                           const Program& program,
                           const std::vector<int>* counts = nullptr);
std::vector<Layout> layouts_of(const std::vector<Laid>& laid);
// `first`: the place of the first of them among the layouts of the cell.
std::vector<Shard> shards_of(const std::vector<Laid>& laid, const Cell& cell, size_t first = 0);
// Where a cell lies in a shard, in bytes.
Runs runs_in(const Shard& shard, const Cells& cells, const Cell& cell, int64_t bytes_per_element);

}  // namespace medley
