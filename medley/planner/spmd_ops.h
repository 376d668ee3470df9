#pragma once

// The ways to compute an op on one axis with what each costs, once per op signature: ops of equal
// name, shapes and labels, such as those of repeated layers, share one table.

#include <map>
#include <string>
#include <vector>

#include "medley/planner/spmd_mesh.h"
#include "medley/sharding/choice.h"
#include "medley/sharding/factors.h"

namespace medley {

// All vectors but the last two are parallel: one entry per choice, "replicate" first.
struct OpChoices {
  std::vector<Choice> choices;
  std::vector<bool> composite;                   // the label is locked unless the op is expanded
  std::vector<Ticks> costs;                      // of one micro-batch
  std::vector<std::vector<AxisState>> operands;  // [operand][choice]
  std::vector<std::vector<AxisState>> results;   // [result][choice]
};

struct SpmdPricing {
  // The weight of each device in the cost of an op; empty: the slowest device counts.
  std::vector<double> weights;
};

class OpCatalogue {
 public:
  // Requires: graph and factors outlive this.
  OpCatalogue(const Graph& graph, const Factors& factors, SpmdMesh mesh, SpmdPricing pricing);

  const Graph& graph() const { return graph_; }
  const Factors& factors() const { return factors_; }
  SpmdMesh& mesh() { return mesh_; }

  // The reference stays valid.
  const OpChoices& of(OpId op);
  int num_signatures() const { return static_cast<int>(known_.size()); }

  const FactoredShape& shape(ValueId value) const {
    return shapes_[static_cast<size_t>(shape_id(value))];
  }
  // Equal for values of equal shapes.
  int shape_id(ValueId value) const { return shape_of_[static_cast<size_t>(value)]; }

 private:
  void note_shapes();
  std::string signature(OpId id) const;
  OpChoices enumerate(OpId id);
  void add(OpId id, const Choice& choice, bool composite, OpChoices& all);
  Ticks price(OpId id, const Choice& choice, bool composite);
  Nanoseconds local_time(OpId id, const Choice& choice, int device);
  Op localize(OpId id,
              const Choice& choice,
              int device,
              const std::vector<TensorType>& operand_types,
              const std::vector<TensorType>& result_types);
  TensorType local_type(ValueId value, const AxisState& state, int device);
  int64_t extent_size(ExtentId extent) const;
  int64_t cut_size(OpId id, const Choice& choice) const;

  const Graph& graph_;
  const Factors& factors_;
  SpmdMesh mesh_;
  SpmdPricing pricing_;
  std::vector<int64_t> symbols_;
  std::vector<FactoredShape> shapes_;       // distinct
  std::vector<int> shape_of_;               // [value]
  std::map<std::string, OpChoices> known_;  // by signature
  std::vector<const OpChoices*> of_op_;     // [op], null: not asked for yet
};

}  // namespace medley
