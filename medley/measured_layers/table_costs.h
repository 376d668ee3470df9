#pragma once

// Costs of stages and of transfers between them, from a layer table on a cluster. Knows nothing of
// schedules, nor of how plans are found.
//
// A stage is a range of layers on `replicas` times `tensor_parallel` devices of a pool; replicas
// divide its rows evenly. It uses the fewest possible nodes, and each replica stays in one node:
//
//   pool of 4-device nodes, 4 replicas of 2:    | a a b b | c c d d |
//
// All devices that divide a layer have its full inputs and outputs. Between stages each device
// sends a share. The receivers gather the shares within their node before the call that reads them:
//
//   a0 | 1 . |  ->  c0 | 1 . |  ->  | 1 2 |
//   a1 | . 2 |  ->  c1 | . 2 |  ->  | 1 2 |

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "medley/base/at.h"
#include "medley/chains/pipeline.h"
#include "medley/cluster/cluster.h"
#include "medley/measured_layers/layer_table.h"
#include "medley/schedule/timer.h"

namespace medley {

struct LayerMesh {
  int pool = 0, replicas = 1, tensor_parallel = 1;
  int devices() const { return replicas * tensor_parallel; }
  auto operator<=>(const LayerMesh&) const = default;
};

class TableCosts {
 public:
  // Throws Error(kCaller) if the table has no times for any device type of the cluster.
  TableCosts(const LayerTable& table, const Cluster& cluster);

  const LayerTable& table() const { return table_; }
  const Cluster& cluster() const { return cluster_; }
  const std::string& table_hash() const { return table_hash_; }
  const std::string& cluster_hash() const { return cluster_hash_; }
  int layers() const { return static_cast<int>(table_.layers.size()); }
  int pools() const { return static_cast<int>(cluster_.pools.size()); }
  int devices(int pool) const;
  int devices_per_node(int pool) const;
  Bytes memory(int pool) const;
  // Returns the degrees measured on the pool's device type that divide its nodes, ascending.
  const std::vector<int>& degrees(int pool) const { return degrees_[at(pool)]; }

  // Returns the cost for micro-batches of `rows` rows. Times are interpolated linearly and made
  // monotone: a smaller batch takes at most as long as a larger one. Returns nullopt if the degree
  // or rows are outside the measurements, replicas do not divide the rows, or no network links
  // them.
  std::optional<StageOption> stage(int begin, int end, const LayerMesh& mesh, int64_t rows) const;
  // Returns why stage() fails: "tensor_parallel: found 3, expected ..."; "" if it does not.
  std::string misfit(const LayerMesh& mesh, int64_t rows) const;
  // Returns the time to sum gradients of layers over all replicas, once a step: inside nodes, then
  // between them in a ring per device position, then inside nodes again. Returns nullopt without a
  // network.
  std::optional<Nanoseconds> all_reduce(int begin, int end, const LayerMesh& mesh) const;
  // Returns whether the layers have a part of the shared tensor.
  bool has_tied(int begin, int end) const;
  // Returns the time per step to sum that tensor's gradients over two stages.
  Nanoseconds add_tied(const LayerMesh& one, const LayerMesh& other) const;

  // Returns the link between devices of two pools; all their nodes have equal parts in it. Returns
  // nullopt if no network links the pools.
  std::optional<LinkCurve> link(int from, int from_devices, int to, int to_devices) const;
  // Returns the time of a cut over a link; if transfers block, the idle time of both stages.
  Nanoseconds transfer(const LinkCurve& link, Bytes bytes) const;
  Bytes cut(int layer, int64_t rows) const;  // over the cut after a layer, one way
  Bytes fixed(const LayerMesh& mesh) const;  // on every device, for any work
  // Returns the reason why no stage can be on the pool; "" if one can.
  std::string unmeasured(int pool) const;
  bool links_nodes(int pool) const;  // within the pool; true for a single node
  bool linked(int from, int to) const { return network(from, to, false) != nullptr; }

 private:
  struct Sums {  // over layers [0, n)
    std::vector<int64_t> forward, backward, update;
  };
  struct ByteSums {
    std::vector<int64_t> parameters, saved;
    int64_t tied = 0, last_output = 0;
  };
  struct Measured {
    Nanoseconds forward, backward, update;
  };
  std::optional<Measured> measured(int begin, int end, const LayerMesh& mesh, int64_t rows) const;
  int64_t parameters(int begin, int end, int degree) const;
  // Returns the gather time of a replica after a layer's cut; 0 after the last.
  Nanoseconds gather(int layer, const LayerMesh& mesh, int64_t rows) const;
  void add_times(int pool, int degree);
  const Network* network(int from, int to, bool same_node) const;
  const LinkCurve* node_link(int pool, bool same_node, int devices) const;

  LayerTable table_;
  Cluster cluster_;
  std::string table_hash_, cluster_hash_;
  std::vector<int> first_device_;                        // [pool]
  std::vector<std::vector<int>> degrees_;                // [pool]
  std::map<int, ByteSums> bytes_;                        // by degree
  std::map<std::tuple<int, int, int64_t>, Sums> times_;  // by pool, degree, rows
  std::vector<int64_t> outputs_;                         // [layer], of a row
  std::vector<int64_t> num_tied_;                        // layers [0, n) that share a tensor
  std::vector<int> networks_;                            // [from][to][same node], -1: none
  // By pool, same node, sending devices: the time of a node as a function of its bytes.
  std::map<std::tuple<int, bool, int>, LinkCurve> node_links_;
};

}  // namespace medley
