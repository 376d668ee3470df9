#pragma once

// Finds through the store who has failed and who has gone silent. Each device tells that it lives
// and looks at one other, so that n devices read O(n) keys:
//
//   0 ──▶ 1 ──▶ 2 ──▶ 3 ──▶ 0        1 finishes: 0 asks who has, and looks at 2 from then on
//
// A device also tells what it has called last of what all have to call together, so that calls
// that do not fit each other are found before they have waited for each other long.
//
// Silence is counted in heartbeats of one's own that the store has taken: time in which the store
// stood still, or this process did, is nobody's silence. Knows no clock and no threads.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "medley/runtime/failure.h"
#include "medley/runtime/joint_calls.h"
#include "medley/runtime/store.h"

namespace medley {

struct FailureDetectorOptions {
  int epoch = 0;
  int device = 0;
  std::vector<int> devices;             // all of the run, in the same order on all
  std::vector<std::string> names = {};  // of `devices`, for messages; empty: their numbers
  std::string link = {};  // to the store, for messages: "link to 10.0.0.1:29500 through eth0"
  int looks_per_heartbeat = 2;
  int dead_after = 10;               // heartbeats, at least 4
  std::string dead_after_text = {};  // the same as a time, for messages
};

class FailureDetector {
 public:
  // Requires: the store outlives this; all devices have passed the handshake of the epoch.
  FailureDetector(Store& store, FailureDetectorOptions options);

  // To be called again and again; every `looks_per_heartbeat`th call is a heartbeat. Returns the
  // first failure of the run. Reads at most 2 keys a heartbeat and one a call; who finds a silent
  // device reads all heartbeats twice, to name everybody who has gone silent with it.
  // `calls` are this device's so far.
  std::optional<Failure> look(const JointCalls& calls = {});
  // Returns the first failure of the run, which may be another's. Whoever watches the processes
  // from outside finds it under the key "failure" of the job: {"device", "cause", ...}.
  Failure publish(const Failure& failure);
  // The failure of a call that waits for a device that has finished; nothing if there is none.
  // Unlike the others it may be called by several threads.
  std::optional<Failure> who_has_left(const JointCalls& calls) const;
  // Nobody misses this device any more, unless for a call that it has not made. Requires: no look()
  // after it.
  void finish(const JointCalls& calls = {});

  // For people, one line.
  std::string describe(const Failure& failure) const;

 private:
  using Heartbeats = std::map<int, std::optional<std::string>>;

  std::string name(int device) const;
  std::string key(const std::string& what) const;
  std::string key_of(int device) const;
  Failure read(const std::string& text) const;
  void look_at_next(const JointCalls& calls);
  using Finished = std::map<int, JointCall>;  // devices, and what they called last
  Finished read_finished() const;
  std::optional<Failure> who_has_left(const JointCalls& calls, const Finished& finished) const;
  void choose_next();
  void compare(const JointCalls& calls, const JointCall& theirs);
  Heartbeats others() const;
  Failure silence() const;

  Store& store_;
  const FailureDetectorOptions options_;
  int64_t num_looks_ = 0, num_heartbeats_ = 0;
  std::optional<int> next_;  // the device that this one looks at; nothing: all others have finished
  std::optional<std::string> seen_;  // its heartbeat
  Finished finished_;                // of which we have heard
  int unchanged_ = 0;                // heartbeats of ours for which it has been that
  Heartbeats suspects_;              // of all others, when it had been for half as long as it may
};

}  // namespace medley
