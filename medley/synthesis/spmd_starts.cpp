#include "medley/synthesis/spmd_starts.h"

#include <algorithm>
#include <utility>

#include "medley/sharding/parts.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/ratio_problem.h"

namespace medley {

SpmdStarts::SpmdStarts(const Request& request, bool even)
    : request_(request), even_(even), layouts_(mesh_layouts(request.cluster, devices_of(request))) {
  for (const MeshLayout& layout : layouts_) speeds_.push_back(speeds_of(request_, layout.devices));
  for (size_t layout = 0; layout < layouts_.size(); ++layout) starts_.push_back(find(layout));
}

std::vector<SpmdStart> SpmdStarts::find(size_t layout) const {
  const MeshLayout& mesh = layouts_[layout];
  const std::vector<double> even(mesh.num_places(), 1.0);
  const std::vector<int64_t> rows = apportion(request_.global_batch, even);
  if (even_) return {{layout, rows, even, {}}};
  const std::vector<double> speeds = of_largest(sums_of_places(mesh, speeds_[layout]));
  std::vector<SpmdStart> all{{layout,
                              layout == 0 ? proportional_rows(request_, mesh.devices)
                                          : apportion(request_.global_batch, speeds),
                              speeds,
                              {}}};
  for (const std::vector<double>& shares : {speeds, even}) {
    // A 2-D search takes ten times as long, and includes even parts in the one by speed.
    if (layout > 0 && shares == even && speeds != even) continue;
    SpmdStart other{layout, rows, shares, {}};
    if (std::find(all.begin(), all.end(), other) == all.end()) all.push_back(std::move(other));
  }
  return all;
}

SpmdStart SpmdStarts::of(const Plan& plan) const {
  SpmdStart start{0, std::vector<int64_t>(layouts_[0].devices.size(), 0), speeds_[0], {}};
  for (const Microbatch& microbatch : only_pipeline(plan).microbatches)
    for (size_t d = 0; d < microbatch.lengths.size(); ++d) start.rows[d] += microbatch.lengths[d];
  for (const Part& part : plan.parts)
    (part.name == kSpeedPart ? start.shares : start.memory) = part.shares;
  return start;
}

SpmdStart SpmdStarts::with_memory(SpmdStart start) const {
  const MeshLayout& layout = layouts_[start.layout];
  std::vector<double> memory;
  for (const int device : layout.devices)
    memory.push_back(request_.cluster.kind(device).memory_bytes);
  start.memory = of_largest(sums_of_places(layout, memory));
  if (are_equal(start.memory)) start.memory.clear();
  return start;
}

Plan SpmdStarts::outline(const SpmdStart& start, int64_t microbatches) const {
  const MeshLayout& layout = layouts_[start.layout];
  Plan plan = empty_plan(request_, layout.devices, start.rows, microbatches);
  only_pipeline(plan).stages[0].mesh = mesh_of(layout, request_.cluster);
  if (!are_equal(start.shares)) plan.parts.push_back({kSpeedPart, {}, start.shares});
  if (!start.memory.empty()) plan.parts.push_back({std::string(kMemoryPart), {}, start.memory});
  return plan;
}

SpmdDivision SpmdStarts::divide(const SpmdStart& start,
                                int64_t microbatches,
                                SpmdPricing pricing) const {
  Plan plan = outline(start, microbatches);
  const Pipeline& pipeline = only_pipeline(plan);
  const MeshLayout& layout = layouts_[start.layout];
  SpmdMesh mesh(*request_.costs,
                layout.devices,
                parts_of(plan, pipeline),
                pipeline.microbatches[0],
                layout.shape);
  return {start,
          std::move(plan),
          OpCatalogue(request_.cache.analysis->prepared->graph,
                      *request_.cache.analysis->factors,
                      std::move(mesh),
                      std::move(pricing))};
}

}  // namespace medley
