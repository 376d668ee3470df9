#pragma once

// A program at work on the devices of this process: all of them as threads, or one of many
// processes. Knows whole tensors by name; the interpreters know local ones by value.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/program/memory.h"
#include "medley/program/prepare.h"
#include "medley/program/program.h"
#include "runtime_devices.h"
#include "runtime_membership.h"
#include "runtime_shard.h"

namespace medley {

struct RunInput {           // what a run is made from, as it comes from Python
  std::string graph, plan;  // texts
  Cluster cluster;
  Optimizer optimizer;
  bool keep_gradients = false;
  int64_t seed = 0;
  DeviceOptions devices;
  std::optional<MembershipOptions> membership;  // of a process of many
  std::string versions;                         // of what has to be the same everywhere
};

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;
  std::vector<std::string> devices;  // names, of this process
  std::vector<int64_t> nanoseconds;  // that the step took on each, by the device's clock
  std::vector<int64_t> waiting;      // of it, for communications
};

class Run {
 public:
  // Throws Error(kCaller) where plan, graph and cluster do not fit each other.
  explicit Run(const RunInput& input);

  // A kind of input is "parameter", "buffer" or "state". Loading a parameter also sets its master
  // copy. Throws Error(kCaller) for unknown names, other shapes and other types.
  void load(const std::string& kind, const std::string& name, const at::Tensor& whole);
  // The devices of the plan that have a value, by their numbers among those of all stages.
  std::vector<int> holders(const std::string& kind, const std::string& name) const;
  // The shard of the n-th device of this process, null if it has none; where the shards of all
  // holders together are the whole.
  at::Tensor shard(const std::string& kind, const std::string& name, int index);
  std::vector<int64_t> shard_shape(const std::string& kind,
                                   const std::string& name,
                                   int device) const;
  at::Tensor assemble(const std::string& kind,
                      const std::string& name,
                      const std::vector<at::Tensor>& shards) const;
  bool is_cut(const std::string& kind, const std::string& name) const;
  std::vector<std::pair<std::string, std::string>> values()
      const;  // (kind, name) of everything that can be read

  // One step. `poll` is called on this thread while it runs; returning true ends it with the error
  // "interrupted".
  StepResult step(const std::map<std::string, at::Tensor>& batch,
                  double learning_rate,
                  int64_t step,
                  const std::function<bool()>& poll);

  // For a process of many: this device has failed outside of a step, or has nothing more to do.
  // Returns the first cause of the run, which may be another's.
  std::string fail(const std::string& cause);
  void finish();
  std::vector<std::string> device_names() const;  // of the plan, stage by stage
  std::vector<MemoryUse> memory() const;          // of the same devices
  const Program& program() const { return program_; }
  // Of the last step, one for each device of this process; their places in the plan.
  const std::vector<StepReport>& reports() const { return reports_; }
  DevicePlace place(int i) const { return devices_->place(i); }
  std::vector<int64_t> peak_bytes() const { return devices_->peak_bytes(); }
  std::string trace_json() const;  // of the last step

 private:
  struct Found {
    const Placement* placement;
    int stage;
  };
  // All stages that have it: tied weights are in several.
  std::vector<Found> find(const std::string& kind, const std::string& name) const;
  const LoweredStage& stage(int i) const { return program_.stages[static_cast<size_t>(i)]; }
  const LoweredStage& stage_of(int i) const { return stage(devices_->place(i).stage); }
  const Table& table(size_t microbatch, DevicePlace place) const;
  void write(const Found& found, const at::Tensor& whole);
  void clear_state();
  std::unique_ptr<Membership> join(const RunInput& input);
  std::string fail(const Place& place, const std::string& cause);
  void set_batch(const std::map<std::string, at::Tensor>& batch);
  void set_batch(int i, const std::map<std::string, at::Tensor>& batch);
  void set_scalars(double learning_rate, int64_t step);
  double read_scalar(ValueId LoweredStage::*value);

  Cluster cluster_;
  int64_t seed_;
  Program program_;
  std::unique_ptr<Devices> devices_;
  std::vector<StepReport> reports_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace medley
