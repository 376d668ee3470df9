#pragma once

// A thread on every device that spreads failures: it publishes its own device's failure, looks for
// failed and silent devices, and then ends the run here.
//
//   device 1   fails > store            (its transport ends too)
//   device 0        poll ... sees it > abort(cause) > grace > exit(cause)
//                   <-- <= 250 ms -->               <- 3 s ->
//
// If there are several failures, all devices report the first one in the store. Knows nothing of
// what failed.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "medley/runtime/failure.h"
#include "medley/runtime/failure_detector.h"
#include "medley/runtime/store.h"

namespace medley {

struct WatchdogOptions {
  int generation = 0;
  int device = 0;
  std::vector<int> devices;             // all of the run
  std::vector<std::string> names = {};  // names for messages; empty: numbers
  std::string link = {};  // to the store, for messages: "link to 10.0.0.1:29500 through eth0"
  std::chrono::milliseconds poll{250}, heartbeat{500}, heartbeat_timeout{5000}, grace{3000};
};

// Returns the options with heartbeats and looks at the frequency that the detector's minimum per
// `heartbeat_timeout` requires.
WatchdogOptions with_heartbeats(WatchdogOptions options);

class Watchdog {
 public:
  using Abort = std::function<void(const std::string& first_cause)>;
  using Exit = std::function<void(const std::string& first_cause, Blame blame)>;

  // `abort` ends all waits of the device, `exit` the process (print_and_exit). The watchdog's
  // thread calls both at most once. Requires: the store outlives this; all devices have passed the
  // generation's handshake.
  Watchdog(Store& store, WatchdogOptions options, Abort abort, Exit exit);
  // Leaves silently: others take this device for dead unless it has finished.
  ~Watchdog();

  // Publishes a failure of this device and returns the run's first one, possibly another device's.
  // Takes two polls, so that others can read a store in this process. Then abort, grace and exit
  // follow as on every device.
  Failure fail(const std::string& call,
               const std::string& edge,
               const std::string& cause,
               Blame blame = Blame::kEnvironment);
  // Marks calls that all processes of the run must make together (joint_calls.h).
  void begin(const std::string& joint_call);
  void end();
  // Ends the watch of this device.
  void finish();

  // Returns nothing if there is no failure.
  std::optional<Failure> first_failure();
  std::string describe(const Failure& failure) const { return detector_.describe(failure); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  void run();
  void look();
  bool waits_for_others();
  void publish(const Failure& failure);
  Failure cause_of(const Failure& failure);
  void end_run();

  const WatchdogOptions options_;
  FailureDetector detector_;
  Abort abort_;
  Exit exit_;
  Time store_answered_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  JointCalls calls_;
  std::optional<Failure> first_;
  std::thread thread_;
};

// Prints the cause on stderr and ends the process immediately, with the exit code of `blame`.
[[noreturn]] void print_and_exit(const std::string& first_cause, Blame blame);

}  // namespace medley
