#include "runtime_workers.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace medley {

Workers::Workers(int count) {
  for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { loop(i); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(const std::function<void(int)>& work,
                  const std::function<void(const std::exception&)>& failed,
                  const std::function<void()>& poll) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  failed_ = &failed;
  first_ = nullptr;
  running_ = size();
  ++round_;
  begin_.notify_all();
  while (running_ > 0) {
    if (end_.wait_for(lock, std::chrono::milliseconds(50)) != std::cv_status::timeout) continue;
    lock.unlock();
    poll();
    lock.lock();
  }
  if (first_) std::rethrow_exception(first_);
}

void Workers::loop(int index) {
  // The devices of one process share its processors.
  const int share = std::max(1, at::get_num_threads() / std::max(1, size()));
  at::set_num_threads(share);
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      (*work_)(index);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    const bool is_first = thrown && !first_;
    if (is_first) {
      first_ = thrown;
      lock.unlock();
      try {
        std::rethrow_exception(thrown);
      } catch (const std::exception& error) {
        (*failed_)(error);
      } catch (...) {
        (*failed_)(std::runtime_error("an exception of unknown type"));
      }
      lock.lock();
    }
    if (--running_ == 0) end_.notify_all();
  }
}

}  // namespace medley
