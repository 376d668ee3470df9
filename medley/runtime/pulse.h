#pragma once

// A thread that sends heartbeats to the store, whatever the other threads of this process do.
// Others wait for this process as long as the value changes.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "medley/runtime/store.h"

namespace medley {

class Pulse {
 public:
  Pulse(std::unique_ptr<Store> store, const std::string& key, std::chrono::milliseconds period);
  ~Pulse();

 private:
  std::unique_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace medley
