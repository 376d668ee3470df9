#pragma once

// The interface that moves tensors between devices. Real: torch.distributed process groups
// (medley/transport). Fake: threads of one process.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "medley/base/units.h"
#include "medley/runtime/executor.h"

namespace medley {

// One communication of one device, with its sizes.
struct Exchange {
  CommunicationKind kind = CommunicationKind::kAllReduce;
  Reduce reduce = Reduce::kSum;
  std::vector<int> group;  // devices of the cluster, in the order of the mesh's axis
  int me = -1;             // index into group
  int lane = -1;           // for transfers: one lane is ordered, several are independent
  int stream = 0;          // on the device (stream_of() of program/lanes.h)
  std::vector<int64_t> send, receive;
  DType dtype = DType::kF32;
  int64_t bytes_per_element = 0;
  int64_t bytes = 0;                         // all inputs together
  std::shared_ptr<const GradientSync> sync;  // for gradient syncs
  std::string name;
  std::vector<Buffer> inputs;  // unshared ones may be overwritten
};

// A communication in flight.
class Pending {
 public:
  virtual ~Pending() = default;
  // Blocks until done; returns the outputs. Throws Error(kEnvironment) naming the peers after the
  // time-out, or the first cause of failure. The caller knows device and exchange.
  virtual std::vector<Buffer> wait() = 0;
  // Returns the real start and end after wait(), for traces, or nothing if unknown.
  virtual std::optional<std::pair<Nanoseconds, Nanoseconds>> times() { return std::nullopt; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Starts an exchange and never blocks. Requires: all devices of a group post the same exchanges
  // (of a lane) in the same order.
  virtual std::unique_ptr<Pending> post(Exchange exchange) = 0;
  // Ends every wait with an error, now and from now on.
  virtual void abort(const std::string& cause) = 0;
};

}  // namespace medley
