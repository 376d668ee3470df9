#pragma once

// The emulation's wrappers around real parts, in an order in which they may be destroyed.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "medley/base/clock.h"
#include "medley/cluster/cluster.h"
#include "medley/cost/cost_model.h"
#include "medley/emulation/emulated_executor.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/emulation/ledger.h"
#include "medley/network/topology.h"
#include "medley/runtime/interpreter.h"

namespace medley {

// Times, links and memory of the cluster's device types instead of this machine's.
struct Emulation {
  std::string ledger;  // the file that processes share; empty for threads
  uint64_t truth_seed = 0;
  double truth_spread = 0;
  std::string profile;     // text: op times instead of the truth; may be empty
  double pace = 0;         // real seconds per emulated second; 0: as fast as possible
  int64_t delay_seed = 0;  // seed of random host delays, for tests; 0: none
};

class EmulatedCluster {
 public:
  EmulatedCluster(const Cluster& cluster, const Emulation& emulation);
  ~EmulatedCluster();

  void join(int device);
  // Marks a device that the plan does not use: it will never post.
  void leave_out(int device);
  std::shared_ptr<Transport> around(std::shared_ptr<Transport> inner);
  std::shared_ptr<Executor> around(std::shared_ptr<Executor> inner, int device);
  std::vector<int64_t> peak_bytes() const;
  std::unique_ptr<Clock> clock(int device);
  // Ends a step at the same emulated time on all devices, because a device's real waits for other
  // processes between steps are unknown to the ledger.
  void end_step(int device, int64_t step, int num_devices, StepReport& report);
  void abort(const std::string& cause);

 private:
  Topology topology_;
  std::optional<CostModel> measured_;
  Emulation options_;
  HostDelay delay_;
  std::unique_ptr<Ledger> ledger_;
  std::vector<int> joined_;
  std::shared_ptr<Transport> inner_transport_;
  std::vector<std::shared_ptr<Executor>> inner_executors_;
  std::vector<const MemoryMeter*> memory_;  // the outer ones
};

}  // namespace medley
