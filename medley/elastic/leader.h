#pragma once

// Who of a run goes on after a failure, and from where: what the process decides that started all
// others. A machine of states, told what happens and asked what to do next:
//
//   run ── lost, failed ──▶ agree ── all have reported ──▶ build ── all have built ──▶ run
//                             ▲                              │
//                             └───── lost, failed, late ─────┘
//
// Each agreement is an epoch of its own; what belongs to an older one is not heard. Where a run
// goes back to an older state as a whole, who has not yet when the next failure comes has nothing
// of use. Knows no processes, no store and no clock.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/base/units.h"
#include "medley/elastic/decision.h"

namespace medley {

struct LeaderOptions {
  int most_alike = 3;  // epochs one after the other with the same members after the same step
  Nanoseconds answer{2'000'000'000};     // for a survivor to say where it is, or that it lives
  Nanoseconds suspect{300'000'000};      // the same, of one that others have not heard for long
  Nanoseconds busy{300'000'000'000};     // for one that lives, and is in its script
  Nanoseconds build{120'000'000'000};    // for all to plan and to bring the state to its places
  Nanoseconds restart{120'000'000'000};  // for a process that was started again to be there
};

// What all members of an epoch need to know to begin it.
struct Agreement {
  int epoch = 0;
  std::vector<std::string> members;   // in the order of the first epoch
  std::map<std::string, int> states;  // the epoch whose plan says what a member has; -1: nothing
  Decision decision;
  // By member, the copies that it keeps: the epoch of their plan, the steps done.
  std::map<std::string, std::vector<std::pair<int, int64_t>>> kept{};
  std::vector<std::string> leaving{};  // members that give what they have, and end
};
std::vector<std::string> staying(const Agreement& agreement);  // the members that a plan may use
// Returns the first member that has a state, which plans for all. Requires: there is one.
std::string eldest(const Agreement& agreement);

struct Order {
  enum class Kind : uint8_t {
    kStop,   // tell all members of `epoch` that it is over, for `text`
    kFence,  // end the process of `device`
    kBegin,  // tell all members of `agreement`
    kGoOn,   // the epoch stands
    kEnd     // end the run, for `text`
  } kind = Kind::kStop;
  int epoch = 0;
  std::string device, text;
  Agreement agreement;
};

class Leader {
 public:
  // Epoch 0 has begun, with all devices and no state.
  explicit Leader(std::vector<std::string> devices, LeaderOptions options = {});

  // The process of a device has ended.
  void lost(const std::string& device, const std::string& cause, Nanoseconds now);
  // A member that the plan of this epoch does not use has ended as all expect.
  void left(const std::string& device);
  // Members have said that an epoch has failed; `suspect`: who has not been heard of, or "".
  void failed(int epoch, const std::string& cause, const std::string& suspect, Nanoseconds now);
  // A device says that it lives.
  void lives(const std::string& device, Nanoseconds now);
  // `state`: the epoch whose plan says what the device has; -1: nothing.
  void reported(int epoch, const StepLeft& left, int state, Nanoseconds now);
  void built(int epoch, const std::string& device, Nanoseconds now);
  // The process of a lost device has been started again, or another one like it; is there.
  void expect(const std::string& device, Nanoseconds now);
  void arrived(const std::string& device, Nanoseconds now);

  std::vector<Order> next(Nanoseconds now);
  int epoch() const { return epoch_; }
  bool runs() const { return phase_ == Phase::kRun; }
  std::vector<std::string> members() const;  // of the epoch that are not lost

 private:
  enum class Phase : uint8_t { kRun, kAgree, kBuild, kEnded };
  struct Report {
    StepLeft left;
    int state = -1;
  };

  void stop(std::vector<Order>& orders, Nanoseconds now);
  void agree(std::vector<Order>& orders, Nanoseconds now);
  void wait_for_all_built(std::vector<Order>& orders, Nanoseconds now);
  void fence(const std::string& device, const std::string& why, std::vector<Order>& orders);
  void end(const std::string& why, std::vector<Order>& orders);
  std::vector<StepLeft> of_use() const;  // reports of those whose state is
  Agreement agreement(const Decision& decision) const;
  bool is_in_vain(const Agreement& next);

  const std::vector<std::string> devices_;
  const LeaderOptions options_;
  Phase phase_ = Phase::kRun;
  int epoch_ = 0;
  Nanoseconds since_;               // of the phase
  std::optional<std::string> why_;  // the epoch has failed
  std::set<std::string> members_, suspects_, built_;
  std::set<std::string> expected_, arrived_;
  std::map<std::string, Report> reports_;  // of the epoch
  std::map<std::string, Nanoseconds> heard_;
  Agreement last_;  // agreement
  int alike_ = 0;   // how many before it were the same
};

}  // namespace medley
