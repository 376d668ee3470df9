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

// Where the processes of a run meet.
struct StoreAddress {
  std::string host;
  int port = 0;
  std::string prefix;                         // of keys
  std::chrono::milliseconds timeout{120000};  // of a request
  std::string interface;                      // of the network, for messages
};

struct ProcessGroups {
  std::map<std::vector<int>, std::string> names;  // by devices
  std::map<std::string, std::string> peers;       // which device listens where, for messages
  std::vector<int> connections;  // sockets that end with the run (transport/c10d_transport.h)
};

struct RunInput {  // what a run is made from, as it comes from Python
  WorkerInput worker;
  int64_t seed = 0;
  std::vector<std::string> torch_devices;  // "cpu", "cuda:0": one for each, or one for all
  // Of a process that has one device of many: makes a process group of each of groups_of(program),
  // together with the other processes.
  std::function<ProcessGroups()> make_groups;
  bool through_host = false;  // these groups reach processors only, whatever computes
  std::string interface;      // between them, for messages
  std::chrono::milliseconds timeout{600000};  // of a wait
  std::optional<StoreAddress> store;          // of a process of many
  // Called when the run ends; what it returns is let go of once all of the run has. Threads of
  // process groups that are waited for may want a lock of the caller's to end: Python's.
  std::function<std::shared_ptr<void>()> at_end;
};

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;
  std::map<std::string, at::Tensor> metrics;  // whole, on the host
  std::vector<std::string> devices;           // names, of this process
  std::vector<int64_t> nanoseconds;           // that the step took on each, by the device's clock
  std::vector<int64_t> waiting;               // of it, for communications
};

class Run {
 public:
  explicit Run(const RunInput& input);
  ~Run();

  // A kind of input is "parameter", "buffer" or "state". Loading a parameter also sets its master
  // copy. Throws Error(kCaller) for unknown names, other shapes and other types.
  void load(const std::string& kind, const std::string& name, const at::Tensor& whole);
  // Sets the state of the optimizer to that before the first step; parameters are loaded after it.
  void clear_state();
  // The devices of the plan that together have a value, by their numbers among those of all stages.
  std::vector<int> holders(const std::string& kind, const std::string& name) const;
  // The shard of the n-th device of this process, null if it has none; where the shards of all
  // holders together are the whole.
  at::Tensor shard(const std::string& kind, const std::string& name, int index);
  // Memory for one, undefined if that device has none.
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
  // The names of parameters and optimizer states of which two devices have different bits: of the
  // stages whose devices are all of this process.
  std::vector<std::string> disagreements();
  at::Tensor assemble(const std::string& kind,
                      const std::string& name,
                      const std::vector<at::Tensor>& shards) const;
  bool is_cut(const std::string& kind, const std::string& name) const;
  std::vector<std::pair<std::string, std::string>> values()
      const;  // (kind, name) of everything that can be read

  // A program for batches of another size, which differs from that of the plan in sizes only.
  // Returns its number, for step(); that of the plan has 0.
  int add_size(const Program& program, const std::string& label);
  // One step. `scalars`: of each rule of the optimizer, without the step (set_scalars()). `size`:
  // the number of the program. `poll` is called on this thread while it runs; returning true ends
  // it with the error "interrupted".
  StepResult step(const std::map<std::string, at::Tensor>& batch,
                  const std::vector<std::vector<double>>& scalars,
                  int64_t step,
                  int size,
                  const std::function<bool()>& poll);

  // Takes the parameters and buffers that `other` has, too, to evaluate with: the same memory,
  // until drop_values() lets go of it. Requires: the same devices, and values placed alike.
  void share_values(Run& other);
  void drop_values();
  // Lets go of one value on all devices of this process, which is given anew before the next step.
  void drop(const std::string& kind, const std::string& name);

  // Of dropout, from the next step on.
  int64_t seed() const { return seed_; }
  void set_seed(int64_t seed) { seed_ = seed; }

  // Of a process of one device, after a step that has failed: how far it has come, and, with what
  // the commit gave to others if not to this one, the rest of it (Interpreter::finish_step).
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
    const Placement* placement;
    int stage;
  };
  // All stages that have it: tied weights are in several.
  std::vector<Found> find(const std::string& kind, const std::string& name) const;
  // The first of them if it has all of it, else all.
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
  // For each rule the learning rate, then the numbers behind the step (ops/update_ops.h).
  void set_scalars(const std::vector<std::vector<double>>& scalars, int64_t step);
  at::Tensor read_reported(const std::function<ValueId(const LoweredStage&)>& value);
  double read_scalar(const std::function<ValueId(const LoweredStage&)>& value);
  StepResult result();

  std::function<std::shared_ptr<void>()> at_end_;
  std::shared_ptr<void> until_ended_;  // of at_end(): the members below are gone before it
  int64_t seed_;
  std::vector<c10::Device> torch_devices_;
  // Of PyTorch, for each device: they share the processors.
  std::shared_ptr<std::atomic<int>> threads_each_;
  struct SizedProgram {
    std::shared_ptr<const Program> program;
    std::string label;  // Worker::use
  };
  std::vector<SizedProgram> sizes_;  // the first one is that of the plan
  Worker worker_;
};

}  // namespace medley
