#pragma once

// Messages of a process group in flight: waiting for them, and ending them.

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "medley/base/error.h"
#include "medley/transport/c10d_transport.h"

namespace medley {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

// The first cause of a transport's abort, and the messages that it ends.
class Abort {
 public:
  void set(const std::string& cause);
  std::optional<std::string> cause() const;
  // Returns whether to wait for `message`. Then forget() follows.
  bool remember(const Work& message);
  void forget(const Work& message);

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> cause_;
  std::set<Work> messages_;
};

// The peers of a wait, and its time limit.
struct Waiting {
  std::shared_ptr<Abort> abort;
  std::chrono::milliseconds timeout{};
  std::shared_ptr<const NetworkNames> names;
  std::string where;  // "over fast/0/0, slow/0/0 through eth0"

  Error error(const std::exception& cause) const;
  Error late() const;
};
// Returns "over <devices> through <interface>".
std::string over(const std::vector<int>& devices, const NetworkNames& names);

// Blocks until all are done. A time-out of one message ends the whole Gloo group, so these waits
// are not cut into slices: abort() ends them. Throws Error(kEnvironment).
void finish(const std::vector<Work>& messages, const Waiting& waiting);

}  // namespace medley
