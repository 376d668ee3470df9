#pragma once

// Gradient syncs over a process group of all devices: two rounds of messages each. A thread runs
// them in posting order while the device computes. The second round begins after the first,
// independent of any waiter.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "medley/kernels/combine.h"
#include "medley/transport/c10d_messages.h"

namespace medley {

class C10dGradientSyncs {
 public:
  // `everybody`: the group's devices by rank. Requires: `group` is thread-safe for host tensors, as
  // Gloo's is.
  C10dGradientSyncs(Group group,
                    std::vector<int> everybody,
                    const at::Device& device,
                    std::shared_ptr<Abort> abort);
  ~C10dGradientSyncs();  // ends gradient syncs in flight
  C10dGradientSyncs(const C10dGradientSyncs&) = delete;
  C10dGradientSyncs& operator=(const C10dGradientSyncs&) = delete;

  // Posts a gradient sync. GPU tensors bypass the thread: their messages wait on the stream.
  std::unique_ptr<Pending> post(Exchange exchange, Waiting waiting);

 private:
  struct Job;
  class JobPending;
  Tensors exchange(const Job& job,
                   const Tensors& sent,
                   const std::vector<int64_t>& elements,
                   int tag);
  void run(Job& job);
  void run_all();

  Group group_;
  std::vector<int> everybody_;
  at::Device device_;
  std::shared_ptr<Abort> abort_;
  std::mutex mutex_;  // guards the queue
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool ended_ = false;
  std::exception_ptr failed_;  // first failure; rethrown to waiters
  std::jthread thread_;        // started by the first post
};

}  // namespace medley
