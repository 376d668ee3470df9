#pragma once

// Who runs in a simulation: how far it has come in its calls, and what it has posted. Private to
// simulate.cpp.

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "medley/program/lanes.h"
#include "medley/program/walk.h"
#include "medley/sim/alike_devices.h"
#include "medley/sim/simulate.h"

namespace medley {

// Of what a device does in a nanosecond while it communicates.
inline constexpr int64_t kParts = 4096;

// An exchange of the network that a device has posted.
struct Posted {
  int exchange = -1;
  int communication = 0;
  int microbatch = 0;  // whose lengths it has
  ExchangeKey key{};
};

// Devices of a stage that do the same at the same times, mostly one: their place in the program and
// their compute clock.
struct Actor {
  explicit Actor(const LoweredStage& of) : posted(of.communications.size()), receiving(of) {}
  size_t number = 0;
  int stage = 0;
  std::vector<int> devices;  // of the mesh, ascending
  Position at;
  bool is_done = false;
  Nanoseconds clock;
  int waits_for = -1;                         // an exchange of the network
  std::vector<std::deque<Posted>> posted;     // [communication], between post and wait
  std::map<int, std::deque<Posted>> sending;  // by lane, the oldest first
  Receiving<Posted> receiving;
  std::vector<Role> roles;               // [communication]
  std::map<uint64_t, int64_t> next_key;  // [Role::group] number of its next exchange
  int64_t speed = kParts;                // in parts per nanosecond, while it does not communicate
  // A segment under way, of a device that communication slows down.
  struct Underway {
    __int128 left = 0;  // parts
    Nanoseconds from;   // when so much was left
  };
  std::optional<Underway> underway;
  struct Ran {
    Nanoseconds from, until;
  };
  std::vector<std::vector<Ran>> ran;  // [call][step], for memory over time
  SimulatedDevice result;
};

}  // namespace medley
