#pragma once

// One thread per device of this process, for the lifetime of this. The first failure ends the
// others and is reported. Knows nothing of programs.

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

  // Starts one thread per name. `abort` must end all bodies soon. The thread of the first failing
  // device calls it. Threads that have not ended within `patience` are abandoned. Throws
  // Error(kEnvironment) if a thread cannot be created.
  DeviceThreads(std::vector<std::string> names,
                std::function<void(const std::string& cause)> abort,
                std::chrono::milliseconds patience = std::chrono::seconds(10),
                const MakeThread& make_thread = make_std_thread);
  // An abandoned thread keeps running, so `body` must share ownership of its data.
  ~DeviceThreads();

  // Calls body(i) on the i-th thread and returns when all have returned. Throws the first failure,
  // with the device's name in front.
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
