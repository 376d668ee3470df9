#pragma once

// The devices of a program, and who communicates with whom.

#include <vector>

#include "medley/program/program.h"

namespace medley {

struct DevicePlace {
  int stage = 0;
  int index = 0;  // in the stage's mesh
};
// Stage by stage: where the device of each rank is.
std::vector<DevicePlace> device_places(const Program& program);

// The devices of the cluster that take part when this one does, in the order in which they have
// their places in the communication. `device` is an index into the stage's mesh.
std::vector<int> group_of(const LoweredStage& stage,
                          const Communication& communication,
                          int device);

// The sets of devices that the program communicates over, each in rising order: one for every group
// of a collective, and that of all devices if stages send to each other, which they do device by
// device. Sorted.
std::vector<std::vector<int>> groups_of(const Program& program);

}  // namespace medley
