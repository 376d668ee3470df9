#pragma once

// The devices of this process, each with its executor, its transport, its clock, its interpreter
// and its thread. The one place that decides which of these are real and which are emulated; nobody
// else can tell.

#include <c10/core/Device.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "medley/base/clock.h"
#include "medley/cluster/cluster.h"
#include "medley/program/program.h"
#include "medley/runtime/device_threads.h"
#include "medley/runtime/interpreter.h"

namespace medley {

// Times, links and memory of the cluster's kinds of devices instead of this machine's.
struct Emulation {
  std::string ledger;  // the file that processes share; empty among threads of one process
  uint64_t truth_seed = 0;
  double truth_spread = 0;
  std::string profile;     // a text: the times of ops, instead of the truth; may be empty
  double pace = 0;         // real seconds per emulated second; 0: as fast as possible
  int64_t delay_seed = 0;  // of random delays of the host, for tests; 0: none
};

struct DeviceOptions {
  std::vector<int> own;  // indices into the devices of all stages, in their order; empty: all, as
                         // threads of this process
  std::vector<std::string> torch_devices;  // "cpu", "cuda:0": one for each, or one for all
  // Of a process that has one device of many: the process group of every set of devices.
  std::map<std::vector<int>, std::string> groups;
  std::chrono::milliseconds timeout{600000};
  std::string interface;  // of the network between processes, for messages
  bool keep_gradients = false;
  bool trace = false;
  std::optional<Emulation> emulation;
};

// A device of a program.
struct DevicePlace {
  int stage = 0;
  int index = 0;  // in the stage's mesh
};
std::vector<DevicePlace> device_places(const Program& program);  // stage by stage

class Devices {
 public:
  // Requires: `program` and `cluster` outlive this.
  Devices(const Program& program, const Cluster& cluster, const DeviceOptions& options);
  ~Devices();

  int size() const { return static_cast<int>(own_.size()); }
  int number(int i) const { return own_[static_cast<size_t>(i)]; }  // among those of all stages
  DevicePlace place(int i) const { return places_[static_cast<size_t>(number(i))]; }
  c10::Device torch_device(int i) const { return torch_devices_[static_cast<size_t>(i)]; }
  Interpreter& interpreter(int i) { return *interpreters_[static_cast<size_t>(i)]; }
  // Whether every device of the plan has a process of its own.
  bool are_of_one_process_each() const { return one_each_; }

  // Runs one step on all devices; the first failure is thrown. Meanwhile calls `poll` on this
  // thread.
  std::vector<StepReport> run_step(const std::function<void()>& poll);
  // The most bytes that each emulated device has had so far; empty on real ones.
  std::vector<int64_t> peak_bytes() const;
  // Ends every wait of these devices with an error, now and from now on.
  void abort(const std::string& cause);

 private:
  class EmulatedCluster;
  void add(const Program& program, const Cluster& cluster, int i, const DeviceOptions& options);

  std::vector<DevicePlace> places_;  // of all devices of the plan
  std::vector<int> own_;             // indices into them
  std::vector<int> numbers_;         // of the same devices, in the cluster
  bool one_each_;
  int64_t steps_ = 0;
  std::vector<c10::Device> torch_devices_;
  std::shared_ptr<Clock> steady_clock_;
  std::unique_ptr<EmulatedCluster> emulated_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<Clock>> clocks_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Interpreter>> interpreters_;
  std::vector<StepReport> reports_;
  std::unique_ptr<DeviceThreads> threads_;
};

}  // namespace medley
