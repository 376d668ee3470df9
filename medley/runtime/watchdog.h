#pragma once

// A thread on every device that makes one failure everybody's: it publishes its own device's
// failure, looks for those of others and for devices that have gone silent, and then ends the run
// here.
//
//   device 1   fails > store            (its transport ends too)
//   device 0        poll ... sees it > abort(cause) > grace > exit(cause)
//                   <-- <= 250 ms -->               <- 3 s ->
//
// Of several failures the first in the store is the cause that all devices report. Knows nothing of
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
  int epoch = 0;
  int device = 0;
  std::vector<int> devices;             // all of the run
  std::vector<std::string> names = {};  // of `devices`, for messages; empty: their numbers
  std::string link = {};  // to the store, for messages: "link to 10.0.0.1:29500 through eth0"
  std::chrono::milliseconds poll{250}, heartbeat{500}, dead_after{5000}, grace{3000};
};

// As a watchdog follows them: with heartbeats as often as it takes for as many in `dead_after` as
// a detector counts at least, and looks as often.
WatchdogOptions with_heartbeats(WatchdogOptions options);

class Watchdog {
 public:
  using Abort = std::function<void(const std::string& first_cause)>;
  using Exit = std::function<void(const std::string& first_cause, Blame blame)>;

  // `abort` ends all waits of the device, `exit` the process (print_and_exit). Both are called by
  // the watchdog's thread, at most once. Requires: the store outlives this; all devices have passed
  // the handshake of the epoch.
  Watchdog(Store& store, WatchdogOptions options, Abort abort, Exit exit);
  // Leaves in silence: others take this device for dead unless it has finished.
  ~Watchdog();

  // Publishes a failure of this device and returns the first one of the run, which may be
  // another's. Takes two polls, so that a store in this process lives long enough for others to see
  // it. Then abort, grace and exit follow as on every device.
  Failure fail(const std::string& call,
               const std::string& edge,
               const std::string& cause,
               Blame blame = Blame::kEnvironment);
  // Around what all processes of the run have to call together (joint_calls.h).
  void begin(const std::string& joint_call);
  void end();
  // The device has nothing more to do: nobody misses it.
  void finish();

  // Nothing while all is well.
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

// Prints the cause on stderr and ends the process at once, with the exit code of whoever is to
// blame.
[[noreturn]] void print_and_exit(const std::string& first_cause, Blame blame);

}  // namespace medley
