#pragma once

// What stages and the transfers between them take, by a layer table on a cluster. Knows nothing of
// schedules, nor of how plans are found.
//
// A stage is a range of layers on `replicas` times `tensor_parallel` devices of a pool; replicas
// divide its rows evenly. It lies on as few nodes as there can be, and no replica on two:
//
//   pool of 4-device nodes, 4 replicas of 2:    | a a b b | c c d d |
//
// Devices that divide a layer all have its inputs and outputs. Between stages each sends a share,
// and the receivers gather the shares on the links of their node before the call that reads them:
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
  // Throws Error(kCaller) if the table has no times for any kind of device of the cluster.
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
  // Degrees that were measured on the pool's kind and divide its nodes; ascending.
  const std::vector<int>& degrees(int pool) const { return degrees_[at(pool)]; }

  // Of `rows` rows of a micro-batch. Between rows that were measured times are linear; where fewer
  // were measured to take longer than more, they take as long as those. Nothing if that degree was
  // not measured, a replica has more or fewer rows than were, replicas do not divide the rows, or
  // no network links them.
  std::optional<StageOption> stage(int begin, int end, const LayerMesh& mesh, int64_t rows) const;
  // Which of these it is: "tensor_parallel: found 3, expected ..."; "" if such a stage can be run.
  std::string misfit(const LayerMesh& mesh, int64_t rows) const;
  // Gradients of layers on all replicas, once a step: added up inside nodes, then between them by a
  // ring of each device with its like, and spread inside nodes again. Nothing if no network links
  // them.
  std::optional<Nanoseconds> all_reduce(int begin, int end, const LayerMesh& mesh) const;
  // Whether the layers have a part of the tensor that several layers share.
  bool has_tied(int begin, int end) const;
  // Adding up the gradients of that tensor over two stages that have it, once a step.
  Nanoseconds add_tied(const LayerMesh& one, const LayerMesh& other) const;

  // Between so many devices of one pool and of another, all of whose nodes have the same part in
  // it. Nothing if no network links the pools.
  std::optional<LinkCurve> link(int from, int from_devices, int to, int to_devices) const;
  // How long a cut of so many bytes takes over a link or, if it blocks, how long both stages wait.
  Nanoseconds transfer(const LinkCurve& link, Bytes bytes) const;
  Bytes cut(int layer, int64_t rows) const;  // what goes over the cut after a layer, one way
  Bytes fixed(const LayerMesh& mesh) const;  // of every device, whatever it computes
  // Why no stage can be on the pool; "" if one can.
  std::string unmeasured(int pool) const;
  bool links_nodes(int pool) const;  // of the pool; true if it has one node only
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
  // Of what crosses the cut after a layer, by the devices of each replica; none behind the last.
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
  // By pool, same node, devices that send: how long a node takes, by its bytes.
  std::map<std::tuple<int, bool, int>, LinkCurve> node_links_;
};

}  // namespace medley
