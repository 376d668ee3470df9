#include "medley/planner/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "medley/base/error.h"
#include "medley/plan/apportion.h"
#include "medley/planner/balance.h"
#include "medley/planner/fit.h"
#include "medley/planner/row_time.h"

namespace medley {

std::vector<int> devices_of(const Request& request) {
  std::vector<int> devices;
  if (request.devices.empty()) {
    devices.resize(request.cluster.devices.size());
    std::iota(devices.begin(), devices.end(), 0);
  }
  for (const std::string& name : request.devices)
    devices.push_back(*find_device(request.cluster, name));
  return devices;
}

namespace {

std::vector<int64_t> even_rows(const Request& request, const std::vector<int>& devices) {
  return apportion(request.global_batch, std::vector<double>(devices.size(), 1.0));
}

}  // namespace

std::vector<int64_t> proportional_rows(const Request& request, const std::vector<int>& devices) {
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t microbatches = std::max<int64_t>(1, request.microbatches);
  const int64_t typical = std::max<int64_t>(1, request.global_batch / count / microbatches);
  std::vector<double> fixed, per_row;
  std::map<std::string, RowTime> times;  // by kind
  for (int device : devices) {
    const DeviceKind& kind = request.cluster.kind(device);
    if (!times.contains(kind.name))
      times[kind.name] = row_time(request.ground->prepared.graph, kind, typical, *request.costs);
    const RowTime& time = times[kind.name];
    fixed.push_back(static_cast<double>(microbatches) * time.fixed + time.update);
    per_row.push_back(std::max(time.per_row, 1e-15));
  }
  return balance(request.global_batch, fixed, per_row);
}

Plan empty_plan(const Request& request,
                const std::vector<int>& devices,
                const std::vector<int64_t>& rows,
                int64_t microbatches) {
  Plan plan;
  plan.strategy = request.strategy;
  plan.graph_hash = request.ground->graph_hash;
  plan.cluster_hash = hash(request.cluster);
  plan.global_batch = request.global_batch;
  Stage stage;
  stage.mesh.axes = {"data"};
  stage.mesh.shape = {static_cast<int64_t>(devices.size())};
  for (int device : devices)
    stage.mesh.devices.push_back(request.cluster.devices[static_cast<size_t>(device)].name);
  Pipeline pipeline;
  pipeline.microbatches = cut_into_microbatches(rows, microbatches);
  pipeline.stages = {std::move(stage)};
  plan.pipelines = {std::move(pipeline)};
  return plan;
}

namespace {

// The fewest micro-batches that fit into memory, unless the request says how many.
Outcome with_microbatches(const Request& request,
                          const std::vector<int>& devices,
                          const std::vector<int64_t>& rows) {
  const auto attempt = [&](int64_t microbatches) {
    Plan plan = empty_plan(request, devices, rows, microbatches);
    std::optional<std::string> misfit = find_misfit(plan, request);
    return std::pair(std::move(plan), std::move(misfit));
  };
  const std::string& meet = request.ground->coupled_at;
  if (!meet.empty() && request.microbatches > 1)
    return Infeasible{fmt::format(
        "rows of graph \"{}\" meet in {}, so that one micro-batch is exact and {} are not",
        request.graph.name,
        meet,
        request.microbatches)};

  const int64_t first = std::max<int64_t>(1, request.microbatches);
  const int64_t last = request.microbatches > 0 || !meet.empty()
                           ? first
                           : *std::max_element(rows.begin(), rows.end());
  auto [plan, misfit] = attempt(first);
  if (!misfit) return plan;
  int64_t too_few = first;
  int64_t enough = first;
  while (misfit) {
    if (enough == last) return Infeasible{explain_misfit(plan, request)};
    too_few = enough;
    enough = std::min(2 * enough, last);
    std::tie(plan, misfit) = attempt(enough);
  }
  while (too_few + 1 < enough) {
    const int64_t middle = (too_few + enough) / 2;
    auto [smaller, does_not_fit] = attempt(middle);
    if (does_not_fit) {
      too_few = middle;
    } else {
      enough = middle;
      plan = std::move(smaller);
    }
  }
  return plan;
}

}  // namespace

std::vector<Microbatch> cut_into_microbatches(const std::vector<int64_t>& rows,
                                              int64_t microbatches) {
  const auto count = static_cast<size_t>(microbatches);
  std::vector<Microbatch> result(count);
  for (Microbatch& microbatch : result) microbatch.lengths.assign(rows.size(), 0);
  size_t next = 0;  // whose turn it is to take a row more
  for (size_t d = 0; d < rows.size(); ++d) {
    for (Microbatch& microbatch : result) microbatch.lengths[d] = rows[d] / microbatches;
    for (int64_t left = rows[d] % microbatches; left > 0; --left) {
      ++result[next].lengths[d];
      next = (next + 1) % count;
    }
  }
  for (Microbatch& microbatch : result)
    microbatch.rows =
        std::accumulate(microbatch.lengths.begin(), microbatch.lengths.end(), int64_t{0});
  return result;
}

Outcome data_parallel_even(const Request& request) {
  const std::vector<int> devices = devices_of(request);
  return with_microbatches(request, devices, even_rows(request, devices));
}

Outcome data_parallel_proportional(const Request& request) {
  const std::vector<int> devices = devices_of(request);
  return with_microbatches(request, devices, proportional_rows(request, devices));
}

}  // namespace medley
