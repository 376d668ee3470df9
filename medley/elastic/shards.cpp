#include "medley/elastic/shards.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {

std::vector<Laid> laid_out(const HeldValue& value,
                           const Program& program,
                           const std::vector<int>* counts) {
  std::vector<Laid> all;
  for (const HoldingStage& stage : value.stages) {
    Laid laid{&stage.layout, program.stages[at(stage.stage)].devices};
    if (counts)
      for (int& device : laid.devices)
        if (std::ranges::find(*counts, device) == counts->end()) device = -1;
    all.push_back(std::move(laid));
  }
  return all;
}

std::vector<Layout> layouts_of(const std::vector<Laid>& laid) {
  std::vector<Layout> layouts;
  for (const Laid& each : laid) layouts.push_back(*each.layout);
  return layouts;
}

std::vector<Shard> shards_of(const std::vector<Laid>& laid, const Cell& cell, size_t first) {
  std::vector<Shard> shards;
  for (size_t l = 0; l < laid.size(); ++l) {
    const int box = cell.boxes[first + l];
    if (box == kNoBox) continue;
    const Laid& each = laid[l];
    for (size_t d = 0; d < each.devices.size(); ++d)
      if (each.devices[d] >= 0 && each.layout->box_of[d] == box)
        shards.push_back(
            {each.devices[d], each.layout, box, each.replicas.empty() ? -1 : each.replicas[d]});
  }
  return shards;
}

Runs runs_in(const Shard& shard, const Cells& cells, const Cell& cell, int64_t bytes_per_element) {
  return runs_in(shard.layout->factors,
                 shard.layout->boxes[at(shard.box)],
                 cells.factors,
                 cell.box,
                 bytes_per_element);
}

}  // namespace medley
