#include "medley/program/lanes.h"

#include <algorithm>
#include <tuple>

#include "medley/program/walk.h"

namespace medley {

std::map<int, std::vector<Receipt>> receipts(const LoweredStage& stage) {
  std::map<int, std::vector<Receipt>> lanes;
  walk(stage, [&](const Call&, Position from, const Wait& wait) {
    const Communication& communication = stage.communications.at(at(wait.communication));
    if (only_receives(communication))
      lanes[communication.lane].push_back({from.call, from.step, wait.communication});
  });
  for (auto& [lane, all] : lanes)
    std::stable_sort(all.begin(), all.end(), [&](const Receipt& a, const Receipt& b) {
      return std::tuple(stage.calls[a.call].microbatch, a.communication) <
             std::tuple(stage.calls[b.call].microbatch, b.communication);
    });
  return lanes;
}

int stream_of(const Communication& communication) {
  if (communication.lane >= 0) return 2 + communication.lane;
  return communication.devices.empty() ? 0 : 1;
}

int num_streams(const Program& program) {
  int last = 0;
  for (const LoweredStage& stage : program.stages)
    for (const Communication& communication : stage.communications)
      last = std::max(last, stream_of(communication));
  return last + 1;
}

}  // namespace medley
