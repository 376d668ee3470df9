#pragma once

// Decides which devices of a run resume after a failure, and from which state. It runs in the
// process that started all others, as a state machine with events and actions:
//
//   run ── lost, failed ──▶ agree ── all have reported ──▶ build ── all have built ──▶ run
//                             ▲                              │
//                             └───── lost, failed, late ─────┘
//
// Each agreement is a generation (`generation` in code). Reports of older generations are ignored.
// If a run returns to an older state, members that have not done so before the next failure count
// as without state. Knows no processes, no store and no clock.

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
  int most_identical = 3;  // consecutive generations with the same members after the same step
  Nanoseconds answer{2'000'000'000};     // for a survivor to report or send a heartbeat
  Nanoseconds suspect{300'000'000};      // likewise, after others have missed it for long
  Nanoseconds busy{300'000'000'000};     // for one that sends heartbeats while in its script
  Nanoseconds build{120'000'000'000};    // for all to plan and to move the state
  Nanoseconds restart{120'000'000'000};  // for a restarted process to be ready
};

// Everything that members need to begin a generation.
struct Agreement {
  int generation = 0;
  std::vector<std::string> members;  // in the order of the first generation
  // The generation whose plan describes a member's state; -1: no state.
  std::map<std::string, int> states;
  Decision decision;
  // The copies that each member keeps: (generation of their plan, completed steps).
  std::map<std::string, std::vector<std::pair<int, int64_t>>> kept{};
  std::vector<std::string> leaving{};  // members that give their state, then end
};
std::vector<std::string> staying(const Agreement& agreement);  // the members that a plan may use
// Returns the first member with state, which plans for all. Requires: there is one.
std::string eldest(const Agreement& agreement);

struct Order {
  enum class Kind : uint8_t {
    kStop,   // end `generation` for all its members, because of `text`
    kFence,  // end the process of `device`
    kBegin,  // start all members of `agreement`
    kGoOn,   // the generation is established
    kEnd     // end the run, because of `text`
  } kind = Kind::kStop;
  int generation = 0;
  std::string device, text;
  Agreement agreement;
};

class Leader {
 public:
  // Begins with generation 0, all devices and no state.
  explicit Leader(std::vector<std::string> devices, LeaderOptions options = {});

  // Reports that the process of a device has ended.
  void lost(const std::string& device, const std::string& cause, Nanoseconds now);
  // Reports that a member which this generation's plan does not use has ended as expected.
  void left(const std::string& device);
  // Reports a failure that members have found. `suspect`: the silent device, or "".
  void failed(int generation,
              const std::string& cause,
              const std::string& suspect,
              Nanoseconds now);
  // Reports a heartbeat of a device.
  void lives(const std::string& device, Nanoseconds now);
  // Adds a survivor's report. `state`: the generation whose plan describes its state; -1: none.
  void reported(int generation, const StepLeft& left, int state, Nanoseconds now);
  void built(int generation, const std::string& device, Nanoseconds now);
  // Report that the process of a lost device, or a replacement, has been started; is ready.
  void expect(const std::string& device, Nanoseconds now);
  void arrived(const std::string& device, Nanoseconds now);

  std::vector<Order> next(Nanoseconds now);
  int generation() const { return generation_; }
  bool runs() const { return phase_ == Phase::kRun; }
  std::vector<std::string> members() const;  // in this generation, without the lost ones

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
  std::vector<StepLeft> of_use() const;  // reports of members with usable state
  Agreement agreement(const Decision& decision) const;
  bool is_in_vain(const Agreement& next);

  const std::vector<std::string> devices_;
  const LeaderOptions options_;
  Phase phase_ = Phase::kRun;
  int generation_ = 0;
  Nanoseconds since_;               // begin of the phase
  std::optional<std::string> why_;  // cause of this generation's failure
  std::set<std::string> members_, suspects_, built_;
  std::set<std::string> expected_, arrived_;
  std::map<std::string, Report> reports_;  // for this generation
  std::map<std::string, Nanoseconds> heard_;
  Agreement last_;     // agreement
  int identical_ = 0;  // number of equal ones before it
};

}  // namespace medley
