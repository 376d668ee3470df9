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

// Importance of an op: its programs run it, it is one of few or many sizes of its class, or a plan
// may need it.
enum class Need : uint8_t { kProgram, kFewSizes, kSizes, kOther };

struct WantedOp {
  std::string kind;  // device type
  SizedOp sized;
  Graph graph;  // this op alone
  Need need;
  Nanoseconds predicted;  // of all its runs in the programs, from the figures of its type
};

struct Wanted {
  std::vector<WantedOp> ops;  // by need, those with the most time first
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

  Wanted take();

 private:
  WantedOp* add(const std::string& kind, const Graph& single, Need need);  // null: no time

  const Cluster& cluster_;
  std::vector<DeviceKind> kinds_;
  Wanted wanted_;
  std::map<std::pair<std::string, std::string>, size_t> known_;  // [device type, key]
};

// Returns ops of a class with work of all powers of two from `least` to `most`, in bytes of the
// largest operand or in flops.
std::vector<Graph> ladder(WorkClass work_class, DType dtype, double least, double most);

}  // namespace medley
