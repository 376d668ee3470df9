#pragma once

// An incomplete profile: the wanted ops and the known results. Measures for a while, then returns,
// so that the caller can save, show progress, and stop. Knows nothing of files.

#include <string>
#include <vector>

#include "medley/measure/op_timer.h"
#include "medley/measure/wanted.h"
#include "medley/profile/profile.h"

namespace medley {

class MeasuringSession {
 public:
  // Skips the ops of `known`. Throws Error(kCaller) if that is of another executor.
  MeasuringSession(Wanted wanted, const Profile& known, const std::string& executor);

  int64_t num_wanted() const { return static_cast<int64_t>(wanted_.ops.size()); }
  int64_t num_left() const;
  // Returns the share of the predicted time of the unique ops that is measured, from 0 to 1.
  double share() const;
  const Wanted& wanted() const { return wanted_; }
  // Returns "aten.mm.default(...): does not fit", in order.
  const std::vector<std::string>& failed() const { return failed_; }

  // Measures ops of this device type: every `stride`-th of the remaining ones from the `first`, at
  // least one, until `limit` has passed. Returns the number of those left.
  int64_t run(const OpTimer& timer,
              const std::string& kind,
              Nanoseconds limit,
              int64_t first = 0,
              int64_t stride = 1);

  const Profile& profile() const { return profile_; }
  void add(CollectiveMeasurement measurement);
  void add(OverlapMeasurement measurement);
  // Adds the measurements of another process.
  void add(const Profile& other);

 private:
  Wanted wanted_;
  Profile profile_;
  std::vector<bool> done_;  // [wanted op]
  std::vector<std::string> failed_;
};

}  // namespace medley
