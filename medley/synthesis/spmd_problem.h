#pragma once

// SPMD synthesis as a pairwise discrete problem. Picks a choice of the rule of every op of a joint
// graph and a storage placement of every parameter, with the least time for compute and
// redistribution.
//
//   variables   one per op (its choices), per parameter and batch input (placements in storage),
//               and a copy per value with several readers: the placement to which it is
//               redistributed once for all of them
//   unaries     the time of the op on its devices; memory times a price
//   edges       redistribution from the placement of a producer to that of a reader
//
//   weight ----- matmul ----- copy of x ----- gelu           x is read by gelu and by gelu_backward
//     |                          |
//   update ---- accumulate    gelu_backward
//
// On a 2-D mesh a choice and a placement have one entry per axis (spmd_mesh.h). Costs within
// micro-batches are multiplied by their number. Layout ops have no variables: readers of a view
// read its base at other positions. Cheap hubs of the problem have none either: constants, masks
// that all layers read, the sum of the gradients' norms. Knows nothing of how the problem is
// solved.

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/prepare/prepare.h"
#include "medley/solve/pbqp.h"
#include "medley/synthesis/spmd_ops.h"

namespace medley {

struct SpmdOptions {
  int64_t microbatches = 1;
  // Weight of op time.
  double ops_count = 1;
  // Weight of overlapped communication: the exchange of gradients, and the gathering of parameters.
  double overlapped_count = 1;
  // Weight of other exchanges, which block a micro-batch. If several are interleaved, another one
  // computes meanwhile (interleave.h).
  double waits_count = 1;
  // Price in ticks per stored byte on a device: a multiplier for memory.
  double byte_price = 0;
  // Whether parameters and optimizer state may be stored in shards.
  bool shard_parameters = true;
  // Whether values sent to other stages must have the placement of received ones: by rows, or whole
  // if rows are undivided. The layers of one stage then fit together.
  bool sends_as_received = false;
  bool operator==(const SpmdOptions&) const = default;
};

// Options for decisions: results unproved after a few rounds of dual ascent are used as they are.
// Without a time limit, plans do not depend on machine load.
inline PbqpOptions search_options() {
  PbqpOptions options;
  options.rounds = 20;
  options.seconds.reset();
  return options;
}

class SpmdProblem {
 public:
  // Several problems may share a catalogue sequentially. Requires: both outlive this; the catalogue
  // is of the prepared graph.
  SpmdProblem(const Prepared& prepared, OpCatalogue& catalogue, const SpmdOptions& options);

  const Pbqp& pbqp() const { return pbqp_; }
  // Returns the stage of a plan with these decisions under exact names. Requires: one choice per
  // variable, as a solution of pbqp().
  Stage stage(const std::vector<int32_t>& choices, Mesh mesh) const;
  // Returns the variable of pbqp() for an op or a parameter; -1 if it has none.
  int variable_of(const std::string& name) const;
  // Returns the text of a plan for this choice of a variable of pbqp().
  std::string choice_text(int variable, int32_t choice) const;

 private:
  enum class Kind : uint8_t { kOp, kParameter, kBatch, kReceived, kCopy };
  struct Variable {
    Kind kind = Kind::kOp;
    int32_t index = 0;                    // index of the op, the input, or the value
    const OpChoices* op = nullptr;        // kOp
    std::vector<PlacementId> placements;  // the others
  };
  struct Reader {
    int variable;
    const std::vector<PlacementId>* wanted;  // [choice of the variable]
    Phase phase;
  };
  // A value that is a view of `root`.
  struct View {
    ValueId root = kNone;
    std::map<PlacementId, PlacementId> to_root;
  };

  void mark_sources();
  void fold_views();
  bool fold_view(OpId id);
  bool is_hub(OpId id) const;
  bool maps_all_readers(ValueId value, const std::map<PlacementId, PlacementId>& map) const;
  void add_inputs();
  void add_ops();
  int add_op_variable(OpId id);
  bool may_update(const OpChoices& choices, size_t choice) const;
  void note_readers();
  void connect();
  void connect_value(ValueId value, int producer, const std::vector<PlacementId>& from, bool input);
  void connect_group(ValueId value,
                     int producer,
                     const std::vector<PlacementId>& from,
                     const std::vector<Reader>& readers);
  void connect_outputs();
  void charge_memory();
  int add_variable(Variable variable, std::vector<int64_t> unary);
  void add_edge(int a,
                int b,
                ValueId value,
                const std::vector<PlacementId>& from,
                const std::vector<PlacementId>& to,
                double times);
  void add_unary(int variable, size_t choice, int64_t cost);
  double times(ValueId value, Phase reader) const;
  Ticks redistribution(ValueId value, PlacementId from, PlacementId to, double times);
  PlacementId whole() const { return mesh_.id(Placement(at(mesh_.num_axes()))); }
  std::vector<PlacementId> parameter_placements(ValueId value) const;
  std::vector<PlacementId> batch_placements(ValueId value) const;
  PlacementId received_placement(ValueId value) const;
  void send(int producer, ValueId value, const std::vector<PlacementId>& from);
  int intern_placements(const std::vector<PlacementId>& placements);
  std::string placement_text(ValueId value, PlacementId placement) const;
  std::string choice_text(OpId op, const MeshChoice& choice) const;
  std::string choice_text(const Variable& variable, size_t choice) const;
  void finish();
  void note_meeting(ValueId value, int variable, const std::vector<PlacementId>& placements);
  std::optional<PlacementId> placement_of(ValueId value, const std::vector<int32_t>& choices) const;
  void add_folded(const std::vector<int32_t>& choices, Stage& stage) const;
  void add_constants(const std::vector<int32_t>& choices, Stage& stage) const;

  const Prepared& prepared_;
  const Graph& graph_;
  const Factors& factors_;
  OpCatalogue& catalogue_;
  SpmdMesh& mesh_;
  SpmdOptions options_;
  std::vector<std::string> part_names_;

  Pbqp pbqp_;
  std::vector<Variable> variables_;
  std::vector<std::vector<int64_t>> unary_;      // [variable], until finish()
  std::vector<int> op_variable_;                 // [op] or -1
  std::vector<int> input_variable_;              // [value] or -1
  std::vector<bool> constant_;                   // [op] depends on no input
  std::vector<bool> batch_only_;                 // [op] depends on no parameter
  std::vector<std::optional<View>> views_;       // [value]
  std::vector<OpId> folded_;                     // in order
  std::map<OpId, MeshChoice> fixed_;             // hubs
  std::deque<std::vector<PlacementId>> mapped_;  // targets of Reader::wanted
  // Placement in which the views of a value are taken: that of a variable.
  struct Meeting {
    int variable = -1;
    std::vector<PlacementId> placements;  // [choice]
  };
  std::map<ValueId, Meeting> meetings_;
  std::set<ValueId> outputs_;
  std::vector<int> pbqp_id_;                  // [variable] or -1: folded
  std::map<std::string, int> by_name_;        // stable name -> variable
  std::vector<std::vector<Reader>> readers_;  // [value]
  std::vector<int> stored_in_step_;           // [value] 1: accumulated over micro-batches
  std::map<std::vector<PlacementId>, int> placement_lists_;
  std::map<std::vector<int64_t>, int> tables_;  // ingredients of a table -> its index
};

}  // namespace medley
