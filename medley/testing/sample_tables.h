#pragma once

// A small table and cluster for tests, with figures for mental arithmetic.

#include <string>
#include <utility>

#include "medley/cluster/cluster.h"
#include "medley/measured_layers/layer_table.h"

namespace medley {

// Six layers: an embedding, four blocks, a head. Device types "fast" and "slow" (three times the
// time), at degrees 1 and 2 and with 1, 2 and 4 rows.
//   A block on one fast device, r rows     forward r ms, backward 2 r ms, update 1 ms
//   embedding and head                     half of that.
//   Two devices each                       0.6 times the time.
// A run needs no memory beyond its layers but the state of Adam.
inline LayerTable sample_table() {
  LayerTable table;
  table.model = "sample";
  table.source = "made up";
  table.layers = {"embedding", "block", "block", "block", "block", "head"};
  table.run = {4, 1, Bytes{0}, 1, 0};
  for (const int degree : {1, 2}) {
    MeasuredBytes bytes{degree, {}};
    for (const char* kind : {"embedding", "block", "head"})
      bytes.kinds[kind] = {{64'000'000 / degree}, {8'000'000 / degree}, {1'000'000}};
    table.bytes.push_back(bytes);
  }
  for (const char* device : {"fast", "slow"})
    for (const int degree : {1, 2})
      for (const int rows : {1, 2, 4}) {
        const int64_t us = rows * (degree == 1 ? 1000 : 600) * (*device == 'f' ? 1 : 3);
        const Nanoseconds whole{us * 1000}, half{us * 500}, update{1'000'000};
        table.times.push_back({device,
                               degree,
                               rows,
                               {{"embedding", {half, half * 2, update}},
                                {"block", {whole, whole * 2, update}},
                                {"head", {half, half * 2, update}}}});
      }
  return table;
}

// Nodes of four devices with 16 GB each; 10 GB/s inside, 1 GB/s between.
inline Cluster sample_cluster(int fast_nodes, int slow_nodes) {
  Cluster cluster;
  for (const auto& [name, nodes] : {std::pair{"fast", fast_nodes}, std::pair{"slow", slow_nodes}}) {
    if (nodes == 0) continue;
    NodePool pool;
    pool.name = name;
    pool.count = nodes;
    pool.devices_per_node = 4;
    pool.kind.name = name;
    pool.kind.memory_bytes = 16e9;
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  std::vector<std::string> names;
  for (const NodePool& pool : cluster.pools) names.push_back(pool.name);
  cluster.networks.push_back({"fabric", true, {}, 1e10, 0, std::nullopt});
  cluster.networks.push_back({"lan", false, names, 1e9, 0, std::nullopt});
  return cluster;
}

}  // namespace medley
