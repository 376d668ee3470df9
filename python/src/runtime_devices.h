#pragma once

// The devices of this process, each with its executor, its transport, its clock and its
// interpreter. The one place that decides which of these are real and which are emulated; nobody
// else can tell.

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "medley/base/clock.h"
#include "medley/cluster/cluster.h"
#include "medley/program/program.h"
#include "medley/runtime/interpreter.h"

namespace medley {

struct DeviceOptions {
  std::vector<int> own;  // indices into the mesh; empty: all, as threads of this process
  std::vector<std::string> torch_devices;  // "cpu", "cuda:0": one for each, or one for all
  std::chrono::milliseconds timeout{600000};
  bool keep_gradients = false;
  bool trace = false;
};

class Devices {
 public:
  // Requires: `program` and `cluster` outlive this.
  Devices(const Program& program, const Cluster& cluster, const DeviceOptions& options);
  ~Devices();

  // Whether every device of the plan has a process of its own.
  bool are_of_one_process_each() const { return one_each_; }
  int size() const { return static_cast<int>(own_.size()); }
  int mesh_index(int i) const { return own_[static_cast<size_t>(i)]; }
  c10::Device torch_device(int i) const { return torch_devices_[static_cast<size_t>(i)]; }
  Interpreter& interpreter(int i) { return *interpreters_[static_cast<size_t>(i)]; }
  // Ends every wait of these devices with an error, now and from now on.
  void abort(const std::string& cause);

 private:
  std::vector<int> own_;
  bool one_each_;
  std::vector<c10::Device> torch_devices_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Interpreter>> interpreters_;
};

}  // namespace medley
