#pragma once

// What a profile should hold: every op that the graphs and programs of somebody contain, at its
// local sizes, once for each kind of device however many layers repeat it; and around them, for
// sizes that no plan has asked for yet, a grid. Knows nothing of how it is measured.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/measure/single_op.h"
#include "medley/profile/profile.h"
#include "medley/program/program.h"

namespace medley {

// The kinds of device of a cluster, sorted by name, once each.
std::vector<DeviceKind> device_kinds(const Cluster& cluster);

struct WantedOp {
  std::string kind;  // of device
  SizedOp sized;
  Graph graph;  // of this op alone
};

struct Wanted {
  std::vector<WantedOp> ops;  // in order of importance: by kind in turn, grid last
  int64_t seen = 0;           // ops that take time, layer by layer and device by device
  int64_t unique = 0;         // of these; the rest of `ops` is the grid
};

class WantedOps {
 public:
  explicit WantedOps(const Cluster& cluster);

  // All ops of a program at the sizes of each of its devices and micro-batches.
  void add(const Program& program);
  // All ops of a graph, undivided. `symbols`: the values of its symbols.
  void add(const Graph& graph, const std::vector<int64_t>& symbols);
  // The grid, to be called last: of every op so far one shard in each of `pieces` along each of its
  // labels, and of every class and dtype so far ops of every power of two of work in between the
  // smallest and the largest of them.
  void add_grid(const std::vector<int64_t>& pieces);

  Wanted take() { return std::move(wanted_); }

 private:
  void add(const std::string& kind, const Graph& single);

  const Cluster& cluster_;
  std::vector<DeviceKind> kinds_;
  Wanted wanted_;
  std::map<std::pair<std::string, std::string>, size_t> known_;  // [kind, key]
};

// Returns ops of a class with powers of two of work, that of the largest operand or of the flops,
// from `least` to `most`.
std::vector<Graph> ladder(WorkClass work_class, DType dtype, double least, double most);

}  // namespace medley
