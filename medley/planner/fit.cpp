#include "medley/planner/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "medley/base/units.h"
#include "medley/program/lower.h"
#include "medley/program/memory.h"

namespace medley {
namespace {

Bytes bytes(double count) { return {static_cast<int64_t>(count)}; }

int64_t most_rows(const Plan& plan, size_t device) {
  int64_t most = 0;
  for (const Microbatch& microbatch : plan.pipelines[0].microbatches)
    most =
        std::max(most, microbatch.lengths.empty() ? microbatch.rows : microbatch.lengths[device]);
  return most;
}

std::string rows_text(int64_t rows) { return rows == 1 ? "1 row" : fmt::format("{} rows", rows); }

}  // namespace

std::optional<std::string> find_misfit(const Plan& plan, const Request& request) {
  return find_misfit(plan, lower(request.graph, plan, request.cluster, request.optimizer), request);
}

std::optional<std::string> find_misfit(const Plan& plan,
                                       const Program& program,
                                       const Request& request) {
  const LoweredStage& stage = program.stages[0];
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    const int device = stage.devices[d];
    const DeviceKind& kind = request.cluster.kind(device);
    const MemoryUse use = memory_use(stage, static_cast<int>(d));
    if (static_cast<double>(use.peak) <= kind.memory_bytes) continue;
    const size_t count = plan.pipelines[0].microbatches.size();
    return fmt::format(
        "{} ({}) needs {} for up to {} in {}, {} of it for parameters and "
        "optimizer state, and has {}",
        request.cluster.devices[static_cast<size_t>(device)].name,
        kind.name,
        to_string(Bytes{use.peak}),
        rows_text(most_rows(plan, d)),
        count == 1 ? "one micro-batch" : fmt::format("each of {} micro-batches", count),
        to_string(Bytes{use.persistent}),
        to_string(bytes(kind.memory_bytes)));
  }
  return std::nullopt;
}

}  // namespace medley
