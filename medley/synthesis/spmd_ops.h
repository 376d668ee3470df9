#pragma once

// Ways to compute an op on a mesh, with costs, one table per op signature: ops of equal name,
// shapes and labels, such as those of repeated layers, share it. On two axes a way has one choice
// per axis; with rows cut between nodes and heads inside them, (n rows, h even).

#include <map>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/ops/rule.h"
#include "medley/sharding/choice.h"
#include "medley/sharding/factors.h"
#include "medley/synthesis/spmd_mesh.h"

namespace medley {

struct AxisChoice {
  Choice choice;
  bool composite = false;  // the label is locked unless the op is expanded
  bool operator==(const AxisChoice&) const = default;
};
using MeshChoice = std::vector<AxisChoice>;  // [axis]

// Parallel tables with one entry per choice, "replicate" on all axes first.
struct OpChoices {
  std::vector<MeshChoice> choices;
  std::vector<Ticks> costs;                        // per micro-batch
  std::vector<std::vector<PlacementId>> operands;  // [operand][choice]
  std::vector<std::vector<PlacementId>> results;   // [result][choice]
};

struct SpmdPricing {
  // Weight of each device in the cost of an op; empty: the slowest device counts.
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

  const FactoredShape& shape(ValueId value) const { return mesh_.shape(shape_id(value)); }
  // Returns equal ids for equal shapes.
  ShapeId shape_id(ValueId value) const { return shape_of_[at(value)]; }

 private:
  void note_shapes();
  std::string signature(OpId id) const;
  // A choice of one axis, with its operand and result placements there.
  struct OnAxis {
    AxisChoice choice;
    std::vector<AxisPlacement> operands, results;
  };
  // A choice of all axes, with placements.
  struct OnMesh {
    MeshChoice choice;
    std::vector<Placement> operands, results;  // [operand], [result]
  };
  OpChoices enumerate(OpId id);
  std::vector<OnAxis> enumerate(OpId id, int axis) const;
  OnAxis on_axis(OpId id, const Choice& choice, bool composite) const;
  bool go_together(OpId id, const OnAxis& first, const OnAxis& second) const;
  bool may_cut_twice(OpId id, const Cut& cut) const;
  void add(OpId id, const std::vector<const OnAxis*>& axes, OpChoices& all);
  SpmdMesh::MeshCut cut_of(OpId id, const MeshChoice& choice) const;
  Ticks price(OpId id, const OnMesh& way);
  double price_statistics(OpId id, const OnMesh& way, size_t axis);
  Nanoseconds local_time(OpId id, const OnMesh& way, int device);
  Op localize(OpId id,
              const OnMesh& way,
              int device,
              const std::vector<TensorType>& operand_types,
              const std::vector<TensorType>& result_types);
  std::vector<LocalCut> local_cuts(OpId id, const MeshChoice& choice, int device);
  TensorType local_type(ValueId value, const Placement& placement, int device);
  int64_t extent_size(ExtentId extent) const;

  const Graph& graph_;
  const Factors& factors_;
  SpmdMesh mesh_;
  SpmdPricing pricing_;
  std::vector<int64_t> symbols_;
  std::vector<ShapeId> shape_of_;           // [value]
  std::map<std::string, OpChoices> known_;  // by signature
  std::vector<const OpChoices*> of_op_;     // [op], null: not computed
};

}  // namespace medley
