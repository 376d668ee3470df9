#pragma once

// Writes the local graph of a stage: ops, and the conversions of values between states. Knows which
// local value holds a value of the whole graph in which state, and from which phase it may be read.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/lower/connect.h"
#include "medley/lower/crossing.h"
#include "medley/lower/lower.h"
#include "medley/program/symbols.h"
#include "medley/program/walk.h"

namespace medley {

class Emitter {
 public:
  Emitter(const Completed& completed,
          const std::vector<int64_t>& mesh,
          const LowerOptions& options);

  // Where ops go from now on.
  void enter(Phase phase, bool last_only);

  // Makes a value of the whole graph known, as it is after its op (or as an input).
  void define(ValueId value, const State& state, ValueId local, Phase phase);
  // Returns the local value that holds `value` in `state`, converting if it has to.
  ValueId in_state(ValueId value, const State& state);

  ValueId add_local_input(const Input& input, const State& state);
  std::vector<ValueId> add_local_op(Op op, const std::vector<TensorType>& types);
  // Has the backward phase read what an input is in the forward phase of its micro-batch.
  void save_for_backward(ValueId input);
  // Returns a local value that is there until the update: of the last micro-batch that made it.
  ValueId keep_for_update(ValueId local);

  // Starts the conversion of a gradient, of which in_state() then finishes what is under way and
  // does the rest. All-reduces are gathered into a bucket for each group until flush_buckets().
  void start(ValueId value, const State& state);
  // Of devices that compute in different types: from now on a value is what the first of those that
  // compute all of it has, so that what is kept or reported is the same on all.
  void agree(ValueId value);
  void flush_buckets();

  // To and from other stages. What is received is there in the state that the assignment says, the
  // wait for it where it is first read.
  void send(ValueId value, const Crossing& crossing);
  void receive(ValueId value, const Crossing& crossing);
  // Receives in the forward phase the new values of buffers that no op has read there: ops of the
  // backward phase read them, and buffers take them forward.
  void receive_new_values();
  // Replaces a value by its sum over stages, whose devices these are; a stage that does not count
  // adds nothing. `what`: its name in all stages.
  void sum_over_stages(ValueId value,
                       const std::string& what,
                       const std::vector<int>& devices,
                       bool counts = true);
  // Returns the sum over stages of a local value that is whole on every device of its stage; a
  // stage that has none adds a zero of this type.
  ValueId sum_over_stages(std::optional<ValueId> local,
                          const TensorType& type,
                          const std::string& what,
                          const std::vector<int>& devices);

  // Returns what this device has of a value with rows, among zeros of all rows: a partial sum over
  // all devices, of the micro-batch. `type`: that of the sum.
  ValueId place_rows(ValueId value, const TensorType& type);
  // Returns its sum over devices; those that have none add zeros.
  ValueId sum_rows(std::optional<ValueId> local,
                   const TensorType& type,
                   const std::string& what,
                   const std::vector<int>& devices);
  // Makes a batch input known whose rows a buffer has; returns the local value of the buffer.
  ValueId add_carried_input(const Input& input, const std::string& buffer, const TensorType& type);
  // Another type of a local value; itself if it is of that one.
  ValueId cast(ValueId local, DType dtype);

  // Gradients and new values of parameters that other stages have, too, and what this one updates
  // of them. Requires: `connections` outlives this.
  void expect_relays(const Connections& connections);
  // The gradient of a parameter is done: from the update on it is the sum over the stages. Returns
  // false if no relay has it. A relay is posted when all of its gradients and those of the relays
  // before it are done; where a mesh has to sum them first, one relay later, so that the ops behind
  // them do not wait.
  bool relay(const std::string& parameter, ValueId value);
  void flush_relays();
  void finish_relays();  // waits for all of them
  // From now on a value is that of a parameter's share, if the stage updates only a share of it.
  void restrict_to_share(const std::string& parameter, ValueId value);
  const OwnedShare* find_share(ValueId value) const;  // of a restricted value, or null
  // The share's elements of a parameter that is there in the state of its update.
  ValueId take_share(const std::string& parameter, ValueId value, const State& state);
  // The new value of what this stage updates is done: it sets out for all stages that hold it, as
  // soon as those before it and in its relay are done. Of what each device has updated whole, each
  // gives its shard.
  void send_value(const std::string& parameter, ValueId value);
  void send_values();  // that are done
  // Returns a parameter's new value, where owners divide the update, in the state in which it is
  // stored.
  ValueId receive_value(const std::string& parameter, ValueId value);

  // Sizes of the factors of a value in a state, and its type.
  std::vector<Size> local_factors(ValueId value, const State& state);
  TensorType local_type(ValueId value, const State& state);
  // Of a value that every device has whole.
  State whole() const { return State(mesh_.size()); }
  const Size& full_size(ValueId value, int position) const;

  LoweredStage stage;
  SymbolTable symbols;
  std::map<Phase, std::vector<Item>> items;

 private:
  struct Held {
    ValueId local;
    Phase phase;
    bool input;  // or a value whose op is an input: read from any phase
  };
  struct Started {
    int communication;
    ValueId received;  // what the communication gives
    AxisState from;
  };

  struct Awaited {  // from another stage
    int communication;
    Crossing crossing;
    std::vector<Size> lengths;  // in the dim that the sender cuts
  };

  // A conversion on one axis, or on the whole mesh from partial sums to the sum.
  struct Conversion {
    int axis;  // or kWholeMesh
    State from, to;
    const AxisState& old_state() const { return from[axis < 0 ? 0 : at(axis)]; }
    const AxisState& new_state() const { return to[axis < 0 ? 0 : at(axis)]; }
    // As the other axes have it.
    State gathered() const;
  };
  struct Bucket {
    int communication = 0;  // that is being filled
    double bytes = 0;
  };

  // A relay that is being filled, and where its sums arrive.
  struct Relaying {
    const StageRelay* relay;
    std::vector<ValueId> gradients;  // [tensor] kNone: not done yet
    bool is_done() const;
  };
  struct Relayed {
    int communication;
    ValueId flat;
    StageRelay::End end;
  };
  // The same of new values, of which the updates make local ones.
  struct Spreading {
    const StageRelay* relay;
    std::vector<ValueId> given;  // [tensor] kNone: not done yet
    bool is_done() const;
  };

  std::optional<ValueId> find(ValueId value, const State& state) const;
  // Throws Error(kCaller) if it is not there in this phase.
  ValueId held(ValueId value, const State& state) const;
  bool is_run_input(ValueId value) const;
  const State& own_state(ValueId value) const {
    const auto arrived = arrived_.find(value);
    return arrived != arrived_.end() ? arrived->second : completed_.assignment.states[at(value)];
  }
  // On an axis of one device all states are one: that of `as`.
  State on_axes_that_matter(State state, const State& as) const;
  std::vector<Conversion> conversions(const State& from, const State& to) const;
  std::optional<ValueId> view_of_converted(ValueId value, const State& state);
  bool is_parameter_view(ValueId value) const;
  ValueId convert(ValueId value, const State& from, const State& to);
  ValueId convert(ValueId value, const Conversion& step);
  ValueId convert_locally(ValueId value, ValueId local, const Conversion& step);
  bool is_local(const Conversion& step) const;
  Communication communication_for(CommunicationKind kind,
                                  const Conversion& step,
                                  ValueId value) const;
  Started begin(ValueId value, ValueId local, const Conversion& step);
  ValueId finish(ValueId value, const Started& started, const State& to);
  ValueId finish_receiving(ValueId value, const Awaited& awaited);
  bool waits_in_mesh(const Relaying& relaying) const;
  void post_relays(bool all);
  void post_relay(const Relaying& relaying);
  int post_relay(const StageRelay& relay, const std::vector<ValueId>& inputs);
  ValueId add_arrival(int communication, ValueId value, const StageRelay::End& end);
  TensorType type_of_end(ValueId value, const StageRelay::End& end);
  void finish_relay(ValueId value, const Relayed& relayed);
  void wait(int communication);
  // This device's shard of a dim of `full` elements: cut out of the whole, or put where it belongs
  // in it among zeros.
  enum class ShardOp : uint8_t { kTake, kPlace };
  struct Piece {
    Size before, full, after, offset, length;
  };
  ValueId shard(ShardOp op, ValueId local, const Piece& piece, const TensorType& type);
  Piece piece_of_one(const State& state);
  ValueId all_reduce_over(ValueId own, const std::string& what, const std::vector<int>& devices);
  // The place of the batch among the factors of a value, and of the rows here in the whole batch.
  struct Rows {
    int position;
    State state;  // cut by rows only
    Piece piece;
  };
  Rows rows_of(ValueId value, const Size& all);
  // As devices exchange what they have, where `wire` stands for bf16.
  ValueId on_wire(ValueId local, DType wire);
  DType wire() const { return wire_type(stage.bf16_as); }  // within the stage
  // A value that no op makes: what a communication brings.
  ValueId add_local_value(const TensorType& type, Lifetime lifetime);
  Started all_reduce(ValueId value, ValueId local, const Conversion& step);
  Started all_reduce_in_bucket(ValueId value, ValueId local, const Conversion& step);
  Started gather(ValueId value, ValueId local, const Conversion& step);
  Started reduce_scatter(ValueId value, ValueId local, const Conversion& step);
  Started all_to_all(ValueId value, ValueId local, const Conversion& step);
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
  Started exchange(Communication communication,
                   ValueId input,
                   const TensorType& received,
                   const AxisState& from);
  void post(int communication);
  std::vector<Size> lengths_of(int axis, int part, const Size& full);
  std::string label(ValueId value) const;
  Op local_op(std::string name, std::vector<Argument> arguments) const;
  Size product(const std::vector<Size>& sizes, size_t first, size_t last) const;

  const Completed& completed_;
  const Graph& graph_;
  std::vector<int64_t> mesh_;  // sizes of the axes
  LowerOptions options_;
  Phase phase_ = Phase::kForward;
  bool last_only_ = false;
  std::map<std::pair<ValueId, State>, std::vector<Held>> held_;
  std::map<std::pair<ValueId, State>, Started> started_;
  std::set<ValueId> received_;
  std::set<ValueId> saved_;
  std::map<ValueId, Awaited> receiving_;
  std::map<int, Bucket> buckets_;  // by axis
  std::vector<Relaying> relaying_;
  size_t next_relay_ = 0;  // to be posted
  std::map<ValueId, Relayed> relayed_;
  std::vector<int> posted_relays_;
  std::vector<Spreading> spreading_;
  size_t next_values_ = 0;  // to be posted
  std::map<std::string, Relayed> new_values_;
  const OwnedShares* shares_ = nullptr;
  DType relay_wire_ = DType::kBF16;
  std::map<std::string, ValueId> parameters_;
  std::map<ValueId, OwnedShare> restricted_;  // values of shares
  std::map<ValueId, State> arrived_;  // sums that a relay has brought, where that is another state
                                      // than that of the value
};

}  // namespace medley
