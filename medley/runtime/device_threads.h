#pragma once

// One thread per device of this process, for as long as this lives. The first failure ends the
// others and is the one that is reported. Knows nothing of programs.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace medley {

class DeviceThreads {
 public:
  using MakeThread = std::function<std::thread(std::function<void()> body)>;

  // One thread per name. `abort` has to make all bodies end soon; it is called by the thread of the
  // first device that fails, and those that have not ended within `patience` are given up.
  // Throws Error(kEnvironment) if a thread cannot be made.
  DeviceThreads(std::vector<std::string> names,
                std::function<void(const std::string& cause)> abort,
                std::chrono::milliseconds patience = std::chrono::seconds(10),
                const MakeThread& make_thread = make_std_thread);
  // A thread that was given up is left behind. So that it finds what it uses, let `body` share it.
  ~DeviceThreads();

  // Calls body(i) on the i-th thread and returns when all have returned. Throws the first failure,
  // with the device's name before it.
  void run(std::function<void(int)> body);

 private:
  static std::thread make_std_thread(std::function<void()> body) {
    return std::thread(std::move(body));
  }

  struct State;
  void end();

  std::shared_ptr<State> state_;
};

}  // namespace medley
