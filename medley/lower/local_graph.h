#pragma once

// The local graph of a stage while it is written: ops, values and communications, in the order in
// which each phase does them. Knows which type a value of the whole graph has here in which state,
// but not where it is.

#include <map>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/lower/connect.h"
#include "medley/program/walk.h"

namespace medley {

// Of a dim of `full` elements, this device's shard.
struct Piece {
  Size before, full, after, offset, length;
};
// Cuts a shard out of the whole, or puts it where it belongs in it among zeros.
enum class ShardOp : uint8_t { kTake, kPlace };

Size product(const std::vector<Size>& sizes, size_t first, size_t last);

class LocalGraph {
 public:
  // Requires: `decided` outlives this.
  explicit LocalGraph(const DecidedStage& decided);

  // Where ops go from now on.
  void enter(Phase phase, bool last_only);
  Phase phase() const { return phase_; }

  ValueId add_input(InputKind kind, const std::string& name, const TensorType& type);
  std::vector<ValueId> add_op(Op op, const std::vector<TensorType>& types);
  // Adds an op of one result, and returns that.
  ValueId add_op(std::string name, std::vector<Argument> arguments, const TensorType& type);
  // A value that no op makes: what a communication brings.
  ValueId add_value(const TensorType& type, Lifetime lifetime);
  // Returns whether all micro-batches have one value together, of values made now.
  Lifetime lifetime() const;

  // Another type of a local value; itself if it is of that one.
  ValueId cast(ValueId local, DType dtype);
  // As devices exchange what they have, where `wire` stands for bf16.
  ValueId on_wire(ValueId local, DType wire);
  DType wire() const { return wire_type(stage.bf16_as); }  // within the stage
  ValueId view(ValueId local, const TensorType& type);
  ValueId zeros(const TensorType& type);
  // A partial sum over an axis of what all of its devices have.
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
  // Returns a local value that is there until the update: of the last micro-batch that made it.
  ValueId keep_for_update(ValueId local);

  // Returns its number.
  int add(Communication communication);
  void post(int communication);
  // Where it is awaited already, nothing: what a relay has waited for in the backward phase is
  // there.
  void wait(int communication);

  // Sizes of the factors of a value in a state, and its type.
  std::vector<Size> local_factors(ValueId value, const State& state);
  TensorType local_type(ValueId value, const State& state);
  const TensorType& whole_type(ValueId value) const { return type_of(source, value); }
  const Size& full_size(ValueId value, int position) const;
  // Of a value that every device has whole.
  State whole() const { return State(stage.mesh.size()); }
  std::string label(ValueId value) const;

  const Completed& completed;
  const Graph& source;  // the whole graph
  LoweredStage stage;
  SymbolTable symbols;
  std::map<Phase, std::vector<Item>> items;
  std::map<ValueId, OwnedShare> shares;  // of values of which the stage has but a share

 private:
  Phase phase_ = Phase::kForward;
  bool last_only_ = false;
};

}  // namespace medley
