#include "medley/planner/megatron.h"

#include "medley/planner/data_parallel.h"
#include "medley/planner/outlines.h"

namespace medley {
namespace {

constexpr int kLayersPerBlock = 1;
constexpr int kMostPriced = 2;  // grids that are lowered and simulated

// Runs of layers that differ by one at most.
std::vector<StageRange> even_ranges(int layers, int stages, int devices) {
  std::vector<StageRange> ranges;
  for (int s = 0; s < stages; ++s)
    ranges.push_back({layers * s / stages, layers * (s + 1) / stages, 0, devices});
  return ranges;
}

}  // namespace

Outcome megatron(const Request& request) {
  if (std::optional<Infeasible> no = rows_meet(request)) return std::move(*no);
  const std::vector<int> devices = devices_of(request);
  const int all = static_cast<int>(devices.size());
  const std::vector<DevicePool> pools{{devices, all, false}};
  StageSynthesis synthesis(request, {.per_block = kLayersPerBlock});
  Outlines outlines(request, pools, synthesis);
  const int layers = static_cast<int>(synthesis.layers().layers.size());
  for (int stages = 1; stages <= std::min(all, layers); ++stages) {
    if (all % stages != 0) continue;
    for (int64_t count : microbatch_counts(request))
      for (const StageStyle style : {StageStyle::kData, StageStyle::kTensor}) {
        if (style == StageStyle::kTensor && all == stages) continue;  // the same
        const StageWork work{outlines.rows(count), count, 0, style};
        const Outline outline{count,
                              even_ranges(layers, stages, all / stages),
                              std::vector<StageWork>(static_cast<size_t>(stages), work)};
        outlines.note_recomputing(outline);
      }
  }
  return outlines.choose(kMostPriced);
}

}  // namespace medley
