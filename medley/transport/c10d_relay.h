#pragma once

// Relays over a process group that has all devices: two rounds of messages each. One thread of its
// own runs them one after the other, in the order of their posts, while the device computes: the
// second round begins when the first is there, whoever waits for it or not.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "medley/kernels/combine.h"
#include "medley/transport/c10d_messages.h"

namespace medley {

class C10dRelays {
 public:
  // `everybody`: the devices of the group by rank. Requires: `group` can be used by several threads
  // at once where tensors are on the host, as Gloo's can.
  C10dRelays(Group group,
             std::vector<int> everybody,
             const at::Device& device,
             std::shared_ptr<Abort> abort);
  ~C10dRelays();  // ends what is under way
  C10dRelays(const C10dRelays&) = delete;
  C10dRelays& operator=(const C10dRelays&) = delete;

  // Tensors on a GPU are not run by the thread: their messages wait on the stream.
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
  std::mutex mutex_;  // of the queue
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool ended_ = false;
  std::exception_ptr failed_;  // of the first that has; for whoever runs them
  std::jthread thread_;        // started by the first post
};

}  // namespace medley
