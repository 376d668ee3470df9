#pragma once

// One thread per device of this process, kept between steps (PyTorch's own thread pools belong to
// the thread that uses them). Knows nothing of what the threads do, nor of Python.

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace medley {

class Workers {
 public:
  explicit Workers(int count);  // Requires: count > 0
  ~Workers();                   // waits for what is running
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Calls work(i) on every thread i. `failed` is called on the first thread that throws, once, so
  // that it can end the waits of the others; `poll` every 50 ms on the calling thread. Returns when
  // all are done; rethrows what was thrown first.
  void run(const std::function<void(int)>& work,
           const std::function<void(const std::exception&)>& failed,
           const std::function<void()>& poll);

 private:
  void loop(int index);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(int)>* work_ = nullptr;
  const std::function<void(const std::exception&)>* failed_ = nullptr;
  uint64_t round_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::exception_ptr first_;
  std::deque<std::thread> threads_;
};

}  // namespace medley
