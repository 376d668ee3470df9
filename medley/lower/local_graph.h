#pragma once

// The local graph of a stage under construction: ops, values and communications, in the order of
// each phase. Knows the local type of a whole graph's value per placement, but not its place.

#include <map>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/lower/connect.h"
#include "medley/program/walk.h"

namespace medley {

// This device's shard of a dim of `full` elements.
struct Piece {
  Size before, full, after, offset, length;
};
// Cuts a shard out of the whole, or places it among zeros.
enum class ShardOp : uint8_t { kTake, kPlace };

Size product(const std::vector<Size>& sizes, size_t first, size_t last);

class LocalGraph {
 public:
  // Requires: `decided` outlives this.
  explicit LocalGraph(const DecidedStage& decided);

  // Sets the phase of the next ops.
  void enter(Phase phase, bool last_only);
  Phase phase() const { return phase_; }

  ValueId add_input(InputKind kind, const std::string& name, const TensorType& type);
  std::vector<ValueId> add_op(Op op, const std::vector<TensorType>& types);
  // Adds an op with one result, and returns that.
  ValueId add_op(std::string name, std::vector<Argument> arguments, const TensorType& type);
  // Returns a new value that a communication brings.
  ValueId add_value(const TensorType& type, Lifetime lifetime);
  // Returns whether values made now are shared by all micro-batches.
  Lifetime lifetime() const;

  // Returns the value in another type; itself if it has that type.
  ValueId cast(ValueId local, DType dtype);
  // Returns the value in the exchange type, which is `wire` for bf16.
  ValueId on_wire(ValueId local, DType wire);
  DType wire() const { return wire_type(stage.bf16_as); }  // within the stage
  ValueId view(ValueId local, const TensorType& type);
  ValueId zeros(const TensorType& type);
  // Returns a partial sum over an axis of a value that all of its devices have.
  ValueId keep_first(ValueId local, int axis, const TensorType& type);
  ValueId shard(ShardOp op, ValueId local, const Piece& piece, const TensorType& type);
  ValueId pack(ValueId local,
               const Size& before,
               const std::vector<Size>& lengths,
               const Size& after,
               const TensorType& flat);
  ValueId unpack(ValueId flat,
                 const Size& before,
                 const std::vector<Size>& lengths,
                 const Size& after,
                 const TensorType& type);
  // Returns a local value that lives until the update: of the last micro-batch that made it.
  ValueId keep_for_update(ValueId local);

  // Returns its number.
  int add(Communication communication);
  void post(int communication);
  // Waits for a communication, unless already awaited, as a gradient sync's in the backward phase.
  void wait(int communication);

  // Returns the sizes of a value's factors in a placement, and its type.
  std::vector<Size> local_factors(ValueId value, const Placement& placement);
  TensorType local_type(ValueId value, const Placement& placement);
  const TensorType& whole_type(ValueId value) const { return type_of(source, value); }
  const Size& full_size(ValueId value, int position) const;
  // Returns the placement of a value that every device has whole.
  Placement whole() const { return Placement(stage.mesh.size()); }
  std::string label(ValueId value) const;

  const Completed& completed;
  const Graph& source;  // the whole graph
  LoweredStage stage;
  SymbolTable symbols;
  std::map<Phase, std::vector<Item>> items;
  std::map<ValueId, OwnedShare> shares;  // values of which the stage has only a share

 private:
  Phase phase_ = Phase::kForward;
  bool last_only_ = false;
};

}  // namespace medley
