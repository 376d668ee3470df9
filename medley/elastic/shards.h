#pragma once

// Layouts of one value, each with the devices that count, and the holders of their cells.

#include <vector>

#include "medley/boxes/cells.h"
#include "medley/checkpoint/held_values.h"
#include "medley/program/program.h"

namespace medley {

// A device's memory with a box of a value.
struct Shard {
  int device = 0;
  const Layout* layout = nullptr;
  int box = kNoBox;
  int replica = -1;  // a replica: into StateReplicas::homes; -1: the device's own shard
};

struct Laid {
  const Layout* layout = nullptr;
  std::vector<int> devices;     // [device of the layout] of the cluster; -1: it does not count
  std::vector<int> replicas{};  // likewise, for replicas
};

// Returns one per stage that stores some of it. Without `counts` all devices count.
std::vector<Laid> laid_out(const HeldValue& value,
                           const Program& program,
                           const std::vector<int>* counts = nullptr);
std::vector<Layout> layouts_of(const std::vector<Laid>& laid);
// Returns a cell's shards. `first`: the index of the first layout of `laid` among the cell's.
std::vector<Shard> shards_of(const std::vector<Laid>& laid, const Cell& cell, size_t first = 0);
// Returns the position of a cell in a shard, in bytes.
Runs runs_in(const Shard& shard, const Cells& cells, const Cell& cell, int64_t bytes_per_element);

}  // namespace medley
