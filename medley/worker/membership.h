#pragma once

// One device's membership in a run's processes: checks that all run the same program, and spreads
// failures. Knows nothing of tensors.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "medley/runtime/handshake.h"
#include "medley/runtime/store.h"
#include "medley/runtime/watchdog.h"

namespace medley {

struct MembershipOptions {
  int generation = 0;
  std::string link;                                   // to the store, for messages
  std::chrono::milliseconds timeout{120000};          // for the others to arrive
  std::chrono::milliseconds heartbeat_timeout{5000};  // without a heartbeat
  std::chrono::milliseconds poll{250};                // interval of looking for failures of others
  Watchdog::Exit exit = print_and_exit;               // ends the process when the run has failed
};

class Membership {
 public:
  // Returns when all devices have arrived with the same hashes. Throws Error(kCaller) naming the
  // first difference. `device` and `devices` are of the cluster; `abort` ends all waits of the
  // device.
  Membership(std::unique_ptr<Store> store,
             const MembershipOptions& options,
             int device,
             const std::vector<int>& devices,
             const std::vector<std::string>& names,
             const NamedHashes& hashes,
             std::function<void(const std::string&)> abort);
  ~Membership();

  // Publishes the failure. Returns the run's first one, possibly another device's, as an error.
  Error fail(const std::string& call, const std::string& edge, const Error& error);
  // Marks calls that all processes of the run must make together.
  void begin(const std::string& joint_call);
  void end();
  // This device has no more work.
  void finish();

 private:
  std::unique_ptr<Store> store_;
  std::unique_ptr<Watchdog> watchdog_;
  bool over_ = false;
};

}  // namespace medley
