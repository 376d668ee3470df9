#pragma once

// An actor of a simulation: its position in its calls, and its posts. Private to simulate.cpp.

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "medley/program/lanes.h"
#include "medley/program/walk.h"
#include "medley/sim/identical_devices.h"
#include "medley/sim/simulate.h"

namespace medley {

// Resolution of compute progress: parts per ns at full speed.
inline constexpr int64_t kParts = 4096;

// A posted exchange of a device.
struct Posted {
  int exchange = -1;
  int communication = 0;
  int microbatch = 0;  // it has this one's lengths
  ExchangeKey key{};
};

// Devices of a stage in lockstep, mostly one: their position in the program and compute clock.
struct Actor {
  explicit Actor(const LoweredStage& of) : posted(of.communications.size()), receiving(of) {}
  size_t number = 0;
  int stage = 0;
  std::vector<int> devices;  // in the mesh, ascending
  Position at;
  bool is_done = false;
  Nanoseconds clock;
  int waits_for = -1;                         // an exchange of the network
  std::vector<std::deque<Posted>> posted;     // [communication], between post and wait
  std::map<int, std::deque<Posted>> sending;  // by lane, oldest first
  Receiving<Posted> receiving;
  std::vector<Role> roles;               // [communication]
  std::map<uint64_t, int64_t> next_key;  // [Role::group] number of its next exchange
  int64_t speed = kParts;                // parts per ns while not communicating
  // A running segment, of a device that communication slows down.
  struct Underway {
    __int128 left = 0;  // parts
    Nanoseconds from;   // time at which `left` was left
  };
  std::optional<Underway> underway;
  struct Ran {
    Nanoseconds from, until;
  };
  std::vector<std::vector<Ran>> ran;  // [call][step], for memory over time
  SimulatedDevice result;
};

}  // namespace medley
