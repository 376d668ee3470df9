#pragma once

// A worker (medley/worker/worker.h) that computes with PyTorch. Knows whole tensors by name; the
// interpreters know local ones by value.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/run/shard.h"
#include "medley/worker/worker.h"

namespace medley {

// The store through which the processes of a run connect.
struct StoreAddress {
  std::string host;
  int port = 0;
  std::string prefix;                         // key prefix
  std::chrono::milliseconds timeout{120000};  // per request
  std::string interface;                      // network interface, for messages
};

struct ProcessGroups {
  std::map<std::vector<int>, std::string> names;  // by devices
  std::map<std::string, std::string> peers;       // the device at each address, for messages
  std::vector<int> connections;  // sockets that close with the run (transport/c10d_transport.h)
};

struct RunInput {  // the inputs of a run, as Python gives them
  WorkerInput worker;
  int64_t seed = 0;
  std::vector<std::string> torch_devices;  // "cpu", "cuda:0": one for each, or one for all
  // For a process with one device of many: makes a process group of each of groups_of(program),
  // together with the other processes.
  std::function<ProcessGroups()> make_groups;
  bool through_host = false;                  // these groups support only the CPU
  std::string interface;                      // network interface, for messages
  std::chrono::milliseconds timeout{600000};  // per wait
  std::optional<StoreAddress> store;          // for a process of many
  // Called at the end of the run. Its result is released after the whole run, since threads of
  // process groups may need a lock of the caller, Python's, to end.
  std::function<std::shared_ptr<void>()> at_end;
};

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;
  std::map<std::string, at::Tensor> metrics;  // whole, on the host
  std::vector<std::string> devices;           // names, in this process
  std::vector<int64_t> nanoseconds;           // step time of each, by the device's clock
  std::vector<int64_t> waiting;               // its part for communications
};

class Run {
 public:
  explicit Run(const RunInput& input);
  ~Run();

  // Loads a value; `kind` is "parameter", "buffer" or "state". Loading a parameter also sets its
  // master copy. Throws Error(kCaller) for unknown names, other shapes and other types.
  void load(const std::string& kind, const std::string& name, const at::Tensor& whole);
  // Resets the optimizer's state to that before the first step. Parameters are loaded afterwards.
  void clear_state();
  // Returns the devices of the plan that store a value, numbered over all stages.
  std::vector<int> holders(const std::string& kind, const std::string& name) const;
  // Returns the shard of the n-th device of this process, null if it has none, for values whose
  // shards together are the whole.
  at::Tensor shard(const std::string& kind, const std::string& name, int index);
  // Returns memory for a shard, undefined if that device has none.
  at::Tensor empty_shard(const std::string& kind, const std::string& name, int index) const;
  // Sets the shard of the n-th device of this process, which may share it. Requires: its shape.
  void give_shard(const std::string& kind,
                  const std::string& name,
                  int index,
                  const at::Tensor& shard);
  int cluster_device(int index) const;  // the n-th device of this process, in the cluster
  std::vector<int64_t> shard_shape(const std::string& kind,
                                   const std::string& name,
                                   int device) const;
  // Returns the parameters and optimizer states of which two devices have different bits, in stages
  // whose devices are all in this process.
  std::vector<std::string> disagreements();
  at::Tensor assemble(const std::string& kind,
                      const std::string& name,
                      const std::vector<at::Tensor>& shards) const;
  bool is_cut(const std::string& kind, const std::string& name) const;
  std::vector<std::pair<std::string, std::string>> values()
      const;  // (kind, name) of all readable values

  // Adds a program that differs from the plan's in sizes only. Returns its number for step(); the
  // plan's is 0.
  int add_size(const Program& program, const std::string& label);
  // Runs one step. `scalars`: for each rule of the optimizer, without the step (set_scalars()).
  // `size`: number of the program. Calls `poll` on this thread meanwhile; true ends the step with
  // the error "interrupted".
  StepResult step(const std::map<std::string, at::Tensor>& batch,
                  const std::vector<std::vector<double>>& scalars,
                  int64_t step,
                  int size,
                  const std::function<bool()>& poll);

  // Shares the memory of the parameters and buffers that `other` has too, for evaluation, until
  // drop_values(). Requires: the same devices and placements.
  void share_values(Run& other);
  void drop_values();
  // Releases one value on all devices of this process. It must be set before the next step.
  void drop(const std::string& kind, const std::string& name);

  // The seed of dropout, used from the next step on.
  int64_t seed() const { return seed_; }
  void set_seed(int64_t seed) { seed_ = seed; }

  // For a process of one device after a failed step: its progress, and the rest of the step with
  // the commit's result (Interpreter::finish_step).
  struct Left {
    Reached reached = Reached::kDone;
    std::optional<double> committed;
    bool commits = false, spreads = false;
  };
  Left left();
  StepResult finish_step(double committed);
  void undo(int steps) { devices().interpreter(0).undo(steps); }

  Worker& worker() { return worker_; }
  const Worker& worker() const { return worker_; }

 private:
  struct Found {
    const PlacedValue* placed;
    int stage;
  };
  // Returns all stages that have it: several for tied weights.
  std::vector<Found> find(const std::string& kind, const std::string& name) const;
  // Returns the first of them if it has the whole value, else all.
  std::vector<Found> find_whole(const std::string& kind, const std::string& name) const;
  std::vector<const Table*> tables(int stage) const;  // [device]
  const Program& program() const { return worker_.program(); }
  const LoweredStage& stage(int i) const { return worker_.stage(i); }
  const LoweredStage& stage_of(int i) const { return stage(devices().place(i).stage); }
  Devices& devices() { return worker_.devices(); }
  const Devices& devices() const { return worker_.devices(); }
  c10::Device torch_device(int i) const { return torch_devices_[at(i) % torch_devices_.size()]; }
  const Table& table(size_t microbatch, DevicePlace place) const;
  WorkerParts parts(const RunInput& input);
  void write(const Found& found, const at::Tensor& whole);
  void set_batch(int i, const Program& program, const std::map<std::string, at::Tensor>& batch);
  // Sets for each rule the learning rate, then the values behind the step (ops/update_ops.h).
  void set_scalars(const std::vector<std::vector<double>>& scalars, int64_t step);
  at::Tensor read_reported(const std::function<ValueId(const LoweredStage&)>& value);
  double read_scalar(const std::function<ValueId(const LoweredStage&)>& value);
  StepResult result();

  std::function<std::shared_ptr<void>()> at_end_;
  std::shared_ptr<void> until_ended_;  // for at_end(): destroyed after the members below
  int64_t seed_;
  std::vector<c10::Device> torch_devices_;
  // PyTorch's threads for each device, which share the CPUs.
  std::shared_ptr<std::atomic<int>> threads_each_;
  struct SizedProgram {
    std::shared_ptr<const Program> program;
    std::string label;  // as in Worker::use
  };
  std::vector<SizedProgram> sizes_;  // the first is the plan's
  Worker worker_;
};

}  // namespace medley
