#pragma once

// The content of a profile: every op of the given graphs and programs at its local sizes, once per
// device type. A grid around them covers sizes that no plan has used yet. Knows nothing of
// measuring.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/measure/single_op.h"
#include "medley/profile/profile.h"
#include "medley/program/program.h"

namespace medley {

// Returns the device types of a cluster, sorted by name, without duplicates.
std::vector<DeviceKind> device_kinds(const Cluster& cluster);

struct WantedOp {
  std::string kind;  // device type
  SizedOp sized;
  Graph graph;  // this op alone
};

struct Wanted {
  std::vector<WantedOp> ops;  // in order of importance: alternating device types, grid last
  int64_t seen = 0;           // ops that take time, layer by layer and device by device
  int64_t unique = 0;         // distinct ones; the rest of `ops` is the grid
};

class WantedOps {
 public:
  explicit WantedOps(const Cluster& cluster);

  // Adds all ops of a program at the sizes of each of its devices and micro-batches.
  void add(const Program& program);
  // Adds all ops of a graph, undivided. `symbols`: the values of its symbols.
  void add(const Graph& graph, const std::vector<int64_t>& symbols);
  // Adds the grid, to be called last. For every op so far it has one shard in each of `pieces`
  // along each of its labels. For every class and dtype it has ops at every power of two of work
  // between the smallest and the largest of them.
  void add_grid(const std::vector<int64_t>& pieces);

  Wanted take() { return std::move(wanted_); }

 private:
  void add(const std::string& kind, const Graph& single);

  const Cluster& cluster_;
  std::vector<DeviceKind> kinds_;
  Wanted wanted_;
  std::map<std::pair<std::string, std::string>, size_t> known_;  // [device type, key]
};

// Returns ops of a class with work of all powers of two from `least` to `most`, in bytes of the
// largest operand or in flops.
std::vector<Graph> ladder(WorkClass work_class, DType dtype, double least, double most);

}  // namespace medley
