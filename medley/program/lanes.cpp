#include "medley/program/lanes.h"

#include <algorithm>
#include <tuple>

#include "medley/base/at.h"
#include "medley/program/calls.h"

namespace medley {

std::map<int, std::vector<Receipt>> receipts(const LoweredStage& stage) {
  std::map<int, std::vector<Receipt>> lanes;
  for (size_t c = 0; c < stage.calls.size(); ++c) {
    const std::span<const Step> steps = steps_of(stage, stage.calls[c]);
    for (size_t s = 0; s < steps.size(); ++s) {
      const auto* wait = std::get_if<Wait>(&steps[s]);
      if (!wait) continue;
      const Communication& communication = stage.communications.at(at(wait->communication));
      if (only_receives(communication))
        lanes[communication.lane].push_back({c, s, wait->communication});
    }
  }
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
