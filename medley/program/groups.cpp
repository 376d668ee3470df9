#include "medley/program/groups.h"

#include <algorithm>
#include <set>

#include "medley/base/at.h"
#include "medley/program/calls.h"

namespace medley {

std::vector<DevicePlace> device_places(const Program& program) {
  std::vector<DevicePlace> places;
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (size_t i = 0; i < program.stages[s].devices.size(); ++i)
      places.push_back({static_cast<int>(s), static_cast<int>(i)});
  return places;
}

std::vector<int> group_of(const LoweredStage& stage,
                          const Communication& communication,
                          int device) {
  if (!communication.devices.empty()) return communication.devices;
  std::vector<int> group;
  for (int member : group_along(stage.mesh, communication.axis, device))
    group.push_back(stage.devices.at(at(member)));
  return group;
}

std::vector<std::vector<int>> groups_of(const Program& program) {
  std::set<std::vector<int>> found;
  std::vector<int> everybody;
  for (const LoweredStage& stage : program.stages)
    everybody.insert(everybody.end(), stage.devices.begin(), stage.devices.end());
  const auto add = [&found](std::vector<int> group) {
    std::sort(group.begin(), group.end());
    found.insert(std::move(group));
  };
  for (const LoweredStage& stage : program.stages)
    for (const Communication& communication : stage.communications) {
      if (!traits_of(communication.kind).own_group) {
        add(everybody);
        continue;
      }
      for (int device = 0; device < static_cast<int>(stage.devices.size()); ++device)
        add(group_of(stage, communication, device));
    }
  return {found.begin(), found.end()};
}

}  // namespace medley
