#include "medley/candidates/pool_mesh.h"

#include <algorithm>

namespace medley {
namespace {

// Of the memory of a device: a closer search may need that much less than layers do by themselves.
constexpr double kRoom = 1.1;

}  // namespace

std::optional<Nanoseconds> step_on_pool(const Request& request,
                                        const DevicePool& pool,
                                        Nanoseconds below,
                                        StageSynthesis& stages) {
  const auto layers = static_cast<int>(stages.layers().layers.size());
  const StageMesh mesh{pool.devices};
  const double room = request.cluster.kind(pool.devices[0]).memory_bytes * kRoom;
  std::optional<Nanoseconds> least;
  for (const int64_t count : microbatch_counts(request)) {
    const int64_t rows = (request.global_batch + count - 1) / count;
    const StageConfig config{rows, count, 0, StageStyle::kBest};
    const Nanoseconds longest{below.value / count};
    stages.solve_layers({{mesh, config}}, longest);
    for (const StageOption& option :
         stages.options(0, layers, stages.offers(mesh, config), longest)) {
      const Bytes needed = option.persistent + option.saved + option.transient;
      const Nanoseconds step = (option.forward + option.backward) * count + option.update;
      if (static_cast<double>(needed.value) <= room && step < below)
        least = std::min(least.value_or(step), step);
    }
  }
  return least;
}

}  // namespace medley
