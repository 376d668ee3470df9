#pragma once

// A profile in the making: what is wanted and what of it is known. Measures for a while, then
// returns, so that the caller can save, show how far it is, and stop. Knows nothing of files.

#include <string>
#include <vector>

#include "medley/measure/op_timer.h"
#include "medley/measure/wanted.h"
#include "medley/profile/profile.h"

namespace medley {

class MeasuringSession {
 public:
  // Ops that `known` has are not measured again. Throws Error(kCaller) if it is of another
  // executor.
  MeasuringSession(Wanted wanted, const Profile& known, const std::string& executor);

  int64_t num_wanted() const { return static_cast<int64_t>(wanted_.ops.size()); }
  int64_t num_left() const;
  const Wanted& wanted() const { return wanted_; }
  // "aten.mm.default(...): does not fit", in order.
  const std::vector<std::string>& failed() const { return failed_; }

  // Measures ops of this kind of device, of those left every `stride`-th from the `first`, until
  // `limit` has passed by the steady clock; at least one. Returns how many are left for it.
  int64_t run(const OpTimer& timer,
              const std::string& kind,
              Nanoseconds limit,
              int64_t first = 0,
              int64_t stride = 1);

  const Profile& profile() const { return profile_; }
  void add(CollectiveMeasurement measurement);
  void add(OverlapMeasurement measurement);
  // What another process has measured.
  void add(const Profile& other);

 private:
  Wanted wanted_;
  Profile profile_;
  std::vector<bool> done_;  // [wanted op]
  std::vector<std::string> failed_;
};

}  // namespace medley
