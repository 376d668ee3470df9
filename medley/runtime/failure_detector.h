#pragma once

// Finds failed and silent devices through the store. Each device sends heartbeats and watches one
// other, so that n devices read O(n) keys:
//
//   0 ──▶ 1 ──▶ 2 ──▶ 3 ──▶ 0        1 finishes: 0 notices, and watches 2 from then on
//
// A device also publishes its last joint call, so that mismatched calls are found before they have
// blocked each other for long.
//
// Silence is counted in own heartbeats that the store has taken. Stalls of the store or of this
// process do not count. Knows no clock and no threads.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "medley/runtime/failure.h"
#include "medley/runtime/joint_calls.h"
#include "medley/runtime/store.h"

namespace medley {

struct FailureDetectorOptions {
  int generation = 0;
  int device = 0;
  std::vector<int> devices;             // all of the run, in the same order on all
  std::vector<std::string> names = {};  // names for messages; empty: numbers
  std::string link = {};  // to the store, for messages: "link to 10.0.0.1:29500 through eth0"
  int looks_per_heartbeat = 2;
  int heartbeat_timeout = 10;               // heartbeats, at least 4
  std::string heartbeat_timeout_text = {};  // likewise as a time, for messages
};

class FailureDetector {
 public:
  // Requires: the store outlives this; all devices have passed the generation's handshake.
  FailureDetector(Store& store, FailureDetectorOptions options);

  // Returns the first failure of the run. To be called repeatedly; every `looks_per_heartbeat`th
  // call is a heartbeat. Reads at most 2 keys a heartbeat and one a call. If a device is silent,
  // all heartbeats are read twice to name all silent devices. `calls`: this device's so far.
  std::optional<Failure> look(const JointCalls& calls = {});
  // Returns the run's first failure, possibly another device's. An external supervisor finds it
  // under the key "failure" of the job: {"device", "cause", ...}.
  Failure publish(const Failure& failure);
  // Returns the failure of a call that waits for a finished device, or nothing. Unlike the others
  // it may be called by several threads.
  std::optional<Failure> who_has_left(const JointCalls& calls) const;
  // Ends the watch of this device, except for calls that it has not made. Requires: no look() after
  // it.
  void finish(const JointCalls& calls = {});

  // Returns one readable line.
  std::string describe(const Failure& failure) const;

 private:
  using Heartbeats = std::map<int, std::optional<std::string>>;

  std::string name(int device) const;
  std::string key(const std::string& what) const;
  std::string key_of(int device) const;
  Failure read(const std::string& text) const;
  void look_at_next(const JointCalls& calls);
  using Finished = std::map<int, JointCall>;  // devices and their last calls
  Finished read_finished() const;
  std::optional<Failure> who_has_left(const JointCalls& calls, const Finished& finished) const;
  void choose_next();
  void compare(const JointCalls& calls, const JointCall& theirs);
  Heartbeats others() const;
  Failure silence() const;

  Store& store_;
  const FailureDetectorOptions options_;
  int64_t num_looks_ = 0, num_heartbeats_ = 0;
  std::optional<int> next_;          // the watched device; empty: all others have finished
  std::optional<std::string> seen_;  // its heartbeat
  Finished finished_;                // known ones
  int unchanged_ = 0;                // own heartbeats without a change of it
  Heartbeats suspects_;              // all others, at half of its limit
};

}  // namespace medley
