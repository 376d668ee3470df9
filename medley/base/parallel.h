#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace medley {

// Calls body(0) ... body(count - 1), each once, on all cores. Rethrows the exception of the
// smallest index. Requires: the calls do not disturb each other.
template <typename Body>
void for_each_in_parallel(size_t count, const Body& body) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const size_t cores = std::max(1U, std::thread::hardware_concurrency());
    for (size_t i = 1; i < std::min(cores, count); ++i) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// Like for_each_in_parallel() with body(i, left_out), while meanwhile() runs in this thread. If
// meanwhile() throws, calls not yet started are skipped, running calls see `left_out` true, and its
// exception is rethrown.
template <typename Meanwhile, typename Body>
void for_each_in_parallel_with(const Meanwhile& meanwhile, size_t count, const Body& body) {
  std::atomic<bool> left_out{false};
  std::exception_ptr failure;
  {
    const std::jthread others([&] {
      try {
        for_each_in_parallel(count, [&](size_t i) {
          if (!left_out) body(i, std::as_const(left_out));
        });
      } catch (...) {
        failure = std::current_exception();
      }
    });
    try {
      meanwhile();
    } catch (...) {
      left_out = true;
      throw;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace medley
