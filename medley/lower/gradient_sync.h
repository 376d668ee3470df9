#pragma once

// Sums gradients of parameters that several stages store, and sends new values from owners to all
// holders (relays.h), for one stage.

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

  // Handles a finished gradient, which the update reads as the sum over stages. Returns false if no
  // relay contains it. A relay is posted when its gradients and those of all earlier relays are
  // done. If a mesh has to sum them first, it is posted one relay later, so that following ops do
  // not wait.
  bool relay(const std::string& parameter, ValueId value);
  void flush() { post_relays(true); }
  void finish();  // waits for all relays

  // Makes a value that of a parameter's share, if the stage updates only a share of it.
  void restrict_to_share(const std::string& parameter, ValueId value);
  // Returns the share's elements of a parameter that is available in the placement of its update.
  ValueId take_share(const std::string& parameter, ValueId value, const State& state);
  // Sends a finished new value to all stages that store it, once those before it and in its relay
  // are done. If devices updated it redundantly, each gives its shard.
  void send_value(const std::string& parameter, ValueId value);
  void send_values();  // all finished ones
  // Returns a parameter's new value in its stored placement, if owners divide the update.
  ValueId receive_value(const std::string& parameter, ValueId value);

 private:
  // An incomplete relay, and the place where its sums arrive.
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
  // Returns the received value as a tensor. Requires: it has its share.
  ValueId unflatten(ValueId value, const Relayed& relayed);

  LocalGraph& graph_;
  LocalValues& values_;
  Redistribution& redistribution_;
  const OwnedShares& shares_;
  const DType wire_;
  std::vector<Relaying> relaying_;
  size_t next_relay_ = 0;  // to be posted
  std::vector<int> posted_relays_;
  std::vector<Relaying> spreading_;  // new values, for which updates produce local ones
  size_t next_values_ = 0;           // to be posted
  std::map<std::string, Relayed> new_values_;
  std::map<std::string, ValueId> parameters_;
};

}  // namespace medley
