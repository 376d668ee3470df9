#pragma once

// Caches the instances of one graph's ops: one per set of identical ops.

#include <memory>
#include <unordered_map>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

class KnownInstances {
 public:
  // `graph` outlives this.
  explicit KnownInstances(const Graph& graph) : graph_(graph) {}

  // Returns instantiate() of an op of the graph; null for no instance. Throws as it does.
  std::shared_ptr<const Instance> of(const Op& op);

 private:
  struct Known {
    const Op* op;
    std::shared_ptr<const Instance> instance;
  };

  bool are_equal(const Op& a, const Op& b) const;
  bool are_equal(ValueId a, ValueId b) const;
  uint64_t hash(const Op& op) const;

  const Graph& graph_;
  std::unordered_map<uint64_t, std::vector<Known>> known_;  // [hash()]
};

}  // namespace medley
