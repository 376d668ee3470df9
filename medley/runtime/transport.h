#pragma once

// The seam to whatever moves tensors between devices. Real: torch.distributed process groups (medley/torch). Fake: threads of one process.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "medley/runtime/executor.h"

namespace medley {

// One communication of one device, sizes filled in.
struct Exchange {
  CommunicationKind kind;
  Reduce reduce;
  std::vector<int> group;  // devices of the cluster, in the order of the mesh's axis
  int me;                  // index into group
  std::vector<int64_t> send, receive;
  int64_t bytes_per_element = 0;
  int64_t bytes = 0;       // of all inputs
  std::string name;
  std::vector<Buffer> inputs;
};

// A communication under way.
class Pending {
 public:
  virtual ~Pending() = default;
  // Blocks until done; returns the outputs. Throws Error(kEnvironment) naming device, exchange and peer after the time-out, or the first cause of failure.
  virtual std::vector<Buffer> wait() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // All devices of a group post the same exchanges in the same order. Never blocks.
  virtual std::unique_ptr<Pending> post(Exchange exchange) = 0;
  // Ends every wait with an error, now and from now on.
  virtual void abort(const std::string& cause) = 0;
};

}  // namespace medley
