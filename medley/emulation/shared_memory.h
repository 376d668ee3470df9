#pragma once

// Memory that threads or processes share, with a mutex that survives the death of its owner, and a
// word to sleep on. A condition variable does not survive the death of a waiter.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>

namespace medley {

// A mapped region, initially zero.
class SharedMemory {
 public:
  // Returns memory for this process and its forked processes.
  static SharedMemory anonymous(size_t bytes);
  // Creates a file, removed by the destructor. Throws Error(kEnvironment) naming the path, for
  // example if it exists.
  static SharedMemory create(const std::filesystem::path& path, size_t bytes);
  // Throws Error(kEnvironment) naming the path.
  static SharedMemory open(const std::filesystem::path& path);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedMemory(std::span<std::byte> bytes, std::filesystem::path to_remove, pid_t owner)
      : bytes_(bytes), to_remove_(std::move(to_remove)), owner_(owner) {}

  std::span<std::byte> bytes_;
  std::filesystem::path to_remove_;
  pid_t owner_;  // a forked child removes nothing
};

class SharedMutex {
 public:
  void format();  // in zeroed memory, once
  // Returns false if an owner has died while it changed the guarded data.
  [[nodiscard]] bool lock();
  void unlock();

 private:
  pthread_mutex_t mutex_;
  std::atomic<int> broken_;
};

// Sleeps until the word is no longer `expected`, until it is woken, or for `timeout`. May return
// early.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::milliseconds timeout);
void wake(std::atomic<uint32_t>& word);

// A process. Its start distinguishes it from a later one with the same number.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0;  // in clock ticks since boot
};
ProcessId this_process();
bool is_alive(const ProcessId& process);  // false for a zombie

}  // namespace medley
