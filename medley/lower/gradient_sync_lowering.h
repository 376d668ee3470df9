#pragma once

// Sums gradients of parameters that several stages store, and sends new values from owners to all
// holders (gradient_syncs.h), for one stage.

#include <map>
#include <string>
#include <vector>

#include "medley/lower/local_values.h"

namespace medley {

class GradientSyncLowering {
 public:
  // `connections`: of this stage. Requires: all outlive this.
  GradientSyncLowering(LocalGraph& graph,
                       LocalValues& values,
                       RedistributionLowering& redistribution,
                       const Connections& connections);

  // Handles a finished gradient, which the update reads as the sum over stages. Returns false if no
  // gradient sync contains it. A gradient sync is posted when its gradients and those of all
  // earlier gradient syncs are done. If a mesh has to sum them first, it is posted one gradient
  // sync later, so that following ops do not wait.
  bool sync(const std::string& parameter, ValueId value);
  void flush() { post_syncs(true); }
  void finish();  // waits for all gradient syncs

  // Makes a value that of a parameter's share, if the stage updates only a share of it.
  void restrict_to_share(const std::string& parameter, ValueId value);
  // Returns the share's elements of a parameter that is available in the placement of its update.
  ValueId take_share(const std::string& parameter, ValueId value, const Placement& placement);
  // Sends a finished new value to all stages that store it, once those before it and in its
  // gradient sync are done. If devices updated it redundantly, each gives its shard.
  void send_value(const std::string& parameter, ValueId value);
  void send_values();  // all finished ones
  // Returns a parameter's new value in its stored placement, if owners divide the update.
  ValueId receive_value(const std::string& parameter, ValueId value);

 private:
  // An incomplete gradient sync, and the place where its sums arrive.
  struct OpenSync {
    const StageSync* sync;
    std::vector<ValueId> given;  // [tensor] kNone: not done yet
    bool is_done() const;
  };
  struct SyncedValue {
    int communication;
    ValueId flat;
    StageSync::End end;
  };

  bool waits_in_mesh(const OpenSync& open) const;
  void post_syncs(bool all);
  void post_sync(const OpenSync& open);
  int post_sync(const StageSync& sync, const std::vector<ValueId>& inputs);
  SyncedValue add_arrival(int communication, ValueId value, const StageSync::End& end);
  TensorType type_of_end(ValueId value, const StageSync::End& end);
  void finish_sync(ValueId value, const SyncedValue& synced);
  // Returns the received value as a tensor. Requires: it has its share.
  ValueId unflatten(ValueId value, const SyncedValue& synced);

  LocalGraph& graph_;
  LocalValues& values_;
  RedistributionLowering& redistribution_;
  const OwnedShares& shares_;
  const DType wire_;
  std::vector<OpenSync> open_syncs_;
  size_t next_sync_ = 0;  // to be posted
  std::vector<int> posted_syncs_;
  std::vector<OpenSync> spreading_;  // new values, for which updates produce local ones
  size_t next_values_ = 0;           // to be posted
  std::map<std::string, SyncedValue> new_values_;
  std::map<std::string, ValueId> parameters_;
};

}  // namespace medley
