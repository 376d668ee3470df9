#pragma once

// The devices of a program, and their communication groups.

#include <vector>

#include "medley/program/program.h"

namespace medley {

struct DevicePlace {
  int stage = 0;
  int index = 0;  // in the stage's mesh
};
// Returns the place of each rank's device, stage by stage.
std::vector<DevicePlace> device_places(const Program& program);

// Returns the participating devices of the cluster if this one participates, in the order of the
// communication. `device` is an index into the stage's mesh.
std::vector<int> group_of(const LoweredStage& stage,
                          const Communication& communication,
                          int device);

// Returns the sorted sets of communicating devices, each ascending: one per group of a collective,
// and that of all devices if stages transfer values to each other.
std::vector<std::vector<int>> groups_of(const Program& program);

}  // namespace medley
