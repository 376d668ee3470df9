#pragma once

// The part of this stage in sums of gradients of parameters that several stages hold, and in
// sending new values from owners to all holders (relays.h).

#include <map>
#include <string>
#include <vector>

#include "medley/lower/local_values.h"

namespace medley {

class GradientSync {
 public:
  // `connections`: of this stage. Requires: all outlive this.
  GradientSync(LocalGraph& graph,
               LocalValues& values,
               Redistribution& redistribution,
               const Connections& connections);

  // The gradient of a parameter is done: from the update on it is the sum over the stages. Returns
  // false if no relay has it. A relay is posted when all of its gradients and those of the relays
  // before it are done; where a mesh has to sum them first, one relay later, so that the ops behind
  // them do not wait.
  bool relay(const std::string& parameter, ValueId value);
  void flush() { post_relays(true); }
  void finish();  // waits for all of them

  // From now on a value is that of a parameter's share, if the stage updates only a share of it.
  void restrict_to_share(const std::string& parameter, ValueId value);
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

 private:
  // A relay that is being filled, and where its sums arrive.
  struct Relaying {
    const StageRelay* relay;
    std::vector<ValueId> given;  // [tensor] kNone: not done yet
    bool is_done() const;
  };
  struct Relayed {
    int communication;
    ValueId flat;
    StageRelay::End end;
  };

  bool waits_in_mesh(const Relaying& relaying) const;
  void post_relays(bool all);
  void post_relay(const Relaying& relaying);
  int post_relay(const StageRelay& relay, const std::vector<ValueId>& inputs);
  Relayed add_arrival(int communication, ValueId value, const StageRelay::End& end);
  TensorType type_of_end(ValueId value, const StageRelay::End& end);
  void finish_relay(ValueId value, const Relayed& relayed);
  // Returns what has arrived, as a tensor of the value. Requires: it has the share that it is to
  // have.
  ValueId unflatten(ValueId value, const Relayed& relayed);

  LocalGraph& graph_;
  LocalValues& values_;
  Redistribution& redistribution_;
  const OwnedShares& shares_;
  const DType wire_;
  std::vector<Relaying> relaying_;
  size_t next_relay_ = 0;  // to be posted
  std::vector<int> posted_relays_;
  std::vector<Relaying> spreading_;  // new values, of which the updates make local ones
  size_t next_values_ = 0;           // to be posted
  std::map<std::string, Relayed> new_values_;
  std::map<std::string, ValueId> parameters_;
};

}  // namespace medley
