#pragma once

// Devices of a stage in lockstep, if communications take their estimates, and the roles of
// communications for them. One device is simulated for all.
//
//   mesh 2 x 4, one kind, even rows    0 1 2 3 | 4 5 6 7     tensors along rows of it, gradients
//   followed                           0                     along columns: all do the same

#include <cstdint>
#include <map>
#include <vector>

#include "medley/program/program.h"
#include "medley/sim/prices.h"

namespace medley {

// Returns classes of the devices of a mesh: their ops take equally long, and they communicate
// within the class or all with the same others. Classes and their devices are ascending.
std::vector<std::vector<int>> identical_devices(const LoweredStage& stage,
                                                const CostModel& costs,
                                                CommunicationPrices& communications);

// Role of a communication of the stage for such devices.
struct Role {
  int member = 0;          // first device's index in its group
  int members = 1;         // number of them in that group
  std::vector<int> leads;  // first ones of their groups
  uint64_t group = 0;      // ExchangeKey::group
  // Exchanges of equal micro-batches, and their number so far.
  struct Known {
    int microbatch = 0;  // the first of them
    const Exchanges* exchanges = nullptr;
    int64_t posted = 0;
  };
  std::vector<Known> known;
};

// Returns the roles, [communication], for some devices of a stage. `number`: of the stage. A group
// is identified by its lane, by its devices (numbers in `groups`), or by stage, axis (or whole
// mesh) and first member.
std::vector<Role> roles_of(const LoweredStage& stage,
                           int number,
                           const std::vector<int>& devices,
                           const CommunicationPrices& prices,
                           const std::map<std::vector<int>, uint64_t>& groups);

}  // namespace medley
