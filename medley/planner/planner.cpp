#include "medley/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "medley/base/error.h"
#include "medley/plan/nearest.h"
#include "medley/planner/data_parallel.h"
#include "medley/planner/row_time.h"

namespace medley {
namespace {

double longest(const Plan& plan, const Request& request) {
  const std::vector<double> seconds =
      compute_seconds(plan, request.graph, request.cluster, request.optimizer);
  return *std::max_element(seconds.begin(), seconds.end());
}

// The plan whose slowest device computes for the shortest time; of equals the earlier strategy.
Outcome plan_auto(const Request& request) {
  std::optional<Plan> best;
  double best_seconds = 0;
  std::string reasons;
  for (const Strategy& strategy : strategies()) {
    if (strategy.plan == plan_auto) continue;
    Request one = request;
    one.strategy = strategy.name;
    Outcome outcome = strategy.plan(one);
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", strategy.name, no->reason);
      continue;
    }
    Plan& found = std::get<Plan>(outcome);
    const double seconds = longest(found, request);
    if (best && seconds >= best_seconds) continue;
    best_seconds = seconds;
    best = std::move(found);
  }
  if (!best) return Infeasible{reasons};
  return std::move(*best);
}

template <typename Found>
[[noreturn]] void refuse(const char* place, const Found& found, const std::string& expected) {
  throw Error(Blame::kCaller, fmt::format("{}: found {}, expected {}", place, found, expected));
}

void check(const Request& request) {
  if (request.global_batch < 1 || request.global_batch > kMaxLength)
    refuse("global batch", request.global_batch, fmt::format("1 to {} rows", kMaxLength));
  if (request.microbatches < 0 || request.microbatches > request.global_batch)
    refuse("microbatches",
           request.microbatches,
           fmt::format("1 to {}, the global batch", request.global_batch));
  if (request.cluster.devices.empty()) refuse("cluster", "no devices", "at least one");
  std::vector<std::string> names;
  for (const Device& device : request.cluster.devices) names.push_back(device.name);
  std::set<std::string> seen;
  for (const std::string& name : request.devices) {
    if (!find_device(request.cluster, name))
      refuse("devices", '"' + name + '"', "a device of the cluster" + suggestion(name, names));
    if (!seen.insert(name).second) refuse("devices", '"' + name + "\" twice", "it once");
  }
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all = {
      {"auto", "the plan of all strategies whose predicted step is shortest", plan_auto},
      {"data-parallel-even",
       "the whole model on every device, the same number of rows for each",
       data_parallel_even},
      {"data-parallel-proportional",
       "the whole model on every device, rows by speed",
       data_parallel_proportional},
  };
  return all;
}

Outcome plan(const Request& request) {
  check(request);
  for (const Strategy& strategy : strategies())
    if (strategy.name == request.strategy) return strategy.plan(request);
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.emplace_back(strategy.name);
  refuse(
      "strategy", '"' + request.strategy + '"', fmt::format("one of {}", fmt::join(names, ", ")));
}

std::vector<double> compute_seconds(const Plan& plan,
                                    const Graph& graph,
                                    const Cluster& cluster,
                                    const Optimizer& optimizer) {
  const Prepared prepared = prepare(graph, optimizer);
  const Pipeline& pipeline = plan.pipelines.at(0);
  const std::vector<std::string>& devices = pipeline.stages.at(0).mesh.devices;
  std::map<std::pair<std::string, int64_t>, RowTime> times;  // by kind and rows
  std::vector<double> seconds(devices.size(), 0);
  for (size_t d = 0; d < devices.size(); ++d) {
    const DeviceKind& kind = cluster.kind(find_device(cluster, devices[d]).value());
    double update = 0;
    for (const Microbatch& microbatch : pipeline.microbatches) {
      const int64_t rows = microbatch.lengths.empty() ? microbatch.rows : microbatch.lengths[d];
      const auto [time, is_new] = times.try_emplace({kind.name, rows});
      if (is_new) time->second = row_time(prepared.graph, kind, std::max<int64_t>(1, rows));
      update = time->second.update;
      if (rows > 0)
        seconds[d] += time->second.fixed + static_cast<double>(rows) * time->second.per_row;
    }
    seconds[d] += update;
  }
  return seconds;
}

}  // namespace medley
