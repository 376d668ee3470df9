#pragma once

// Devices of a stage that do the same at the same times, if communications take what they are
// estimated to, and what communications are for them: they need be followed once.
//
//   mesh 2 x 4, one kind, even rows    0 1 2 3 | 4 5 6 7     tensors along rows of it, gradients
//   followed                           0                     along columns: all do the same

#include <cstdint>
#include <map>
#include <vector>

#include "medley/program/program.h"
#include "medley/sim/prices.h"

namespace medley {

// Classes of the devices of a mesh: their ops take equally long, and who communicates along an axis
// does so within the class, or with all of it. Each and all of them ascending.
std::vector<std::vector<int>> alike_devices(const LoweredStage& stage,
                                            const CostModel& costs,
                                            CommunicationPrices& communications);

// What a communication of their stage is for such devices.
struct Role {
  int member = 0;          // of the group that the first of them is in, which
  int members = 1;         // so many of them are in
  std::vector<int> leads;  // those that are the first ones of their groups
  uint64_t group = 0;      // of the key
  // What its exchanges are, and how many of them there were, of micro-batches that are alike.
  struct Known {
    int microbatch = 0;  // the first of them
    const Exchanges* exchanges = nullptr;
    int64_t posted = 0;
  };
  std::vector<Known> known;
};

// [communication] For some of the devices of a stage of this number. A group is known by its lane,
// or by its devices, of which `groups` has the numbers, or by its stage, its axis (or the whole
// mesh) and its first member.
std::vector<Role> roles_of(const LoweredStage& stage,
                           int number,
                           const std::vector<int>& devices,
                           const CommunicationPrices& prices,
                           const std::map<std::vector<int>, uint64_t>& groups);

}  // namespace medley
