#include "medley/synthesis/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "medley/sharding/parts.h"
#include "medley/solve/balance.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/mesh_layouts.h"
#include "medley/synthesis/tuning.h"

namespace medley {

std::optional<Infeasible> refuse_cross_sample(const Request& request) {
  const std::string& meet = request.cache.analysis->coupling;
  if (meet.empty() || request.microbatches <= 1) return std::nullopt;
  return Infeasible{
      fmt::format("{}: one micro-batch is exact, {} are not", meet, request.microbatches)};
}

bool has_room_for_replicas(const Request& request) {
  const Graph& graph = request.cache.analysis->graph;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), 1);
  int64_t bytes = 0;
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kParameter)
      bytes += num_bytes(type_of(graph, input.value), symbols);
  return std::ranges::all_of(devices_of(request), [&](int device) {
    return static_cast<double>(bytes) <= request.cluster.kind(device).memory_bytes;
  });
}

std::vector<int64_t> even_rows(const Request& request, const std::vector<int>& devices) {
  return apportion(request.global_batch, std::vector<double>(devices.size(), 1.0));
}

namespace {

// Times of devices for rows of a step. Op times need not be linear in rows, so lines are fitted
// locally.
class RowLines {
 public:
  RowLines(const Request& request, const std::vector<int>& devices)
      : request_(request),
        devices_(devices),
        microbatches_(std::max<int64_t>(1, request.microbatches)) {
    const auto count = static_cast<int64_t>(devices.size());
    typical_ = std::max<int64_t>(1, request.global_batch / count / microbatches_);
  }

  // Returns lines at these rows of a step; for a device without rows, at an even share.
  std::vector<RowTime> at(const std::vector<int64_t>& rows) {
    std::vector<RowTime> times;
    for (size_t d = 0; d < devices_.size(); ++d) {
      const int64_t each = (rows[d] + microbatches_ - 1) / microbatches_;
      times.push_back(line(devices_[d], each > 0 ? each : typical_));
    }
    return times;
  }

  std::vector<int64_t> balanced(const std::vector<RowTime>& times) const {
    std::vector<double> fixed, per_row;
    for (const RowTime& time : times) {
      fixed.push_back(static_cast<double>(microbatches_) * time.fixed + time.update);
      per_row.push_back(time.per_row);
    }
    return balance(request_.global_batch, fixed, per_row);
  }

  // Returns seconds of compute per step of the slowest device.
  double slowest(const std::vector<int64_t>& rows) {
    const std::vector<RowTime> times = at(rows);
    double most = 0;
    for (size_t d = 0; d < rows.size(); ++d) {
      const int64_t each = (rows[d] + microbatches_ - 1) / microbatches_;
      const double microbatch =
          each > 0 ? times[d].fixed + static_cast<double>(each) * times[d].per_row : 0;
      most = std::max(most, static_cast<double>(microbatches_) * microbatch + times[d].update);
    }
    return most;
  }

 private:
  const RowTime& line(int device, int64_t rows) {
    const DeviceKind& kind = request_.cluster.kind(device);
    const auto [it, is_new] = known_.try_emplace({kind.name, rows});
    if (is_new)
      it->second = row_time(request_.cache.analysis->prepared->graph, kind, rows, *request_.costs);
    return it->second;
  }

  const Request& request_;
  const std::vector<int>& devices_;
  const int64_t microbatches_;
  int64_t typical_ = 1;
  std::map<std::pair<std::string, int64_t>, RowTime> known_;  // by type and rows
};

}  // namespace

std::vector<RowTime> row_times(const Request& request, const std::vector<int>& devices) {
  return RowLines(request, devices).at(std::vector<int64_t>(devices.size(), 0));
}

std::vector<int64_t> proportional_rows(const Request& request, const std::vector<int>& devices) {
  RowLines lines(request, devices);
  const std::vector<int64_t> even = even_rows(request, devices);
  std::vector<int64_t> best = lines.balanced(lines.at(std::vector<int64_t>(devices.size(), 0)));
  // Shares are fitted again while that is faster.
  for (;;) {
    std::vector<int64_t> rows = lines.balanced(lines.at(best));
    if (lines.slowest(rows) >= lines.slowest(best)) break;
    best = std::move(rows);
  }
  return lines.slowest(even) < lines.slowest(best) ? even : best;
}

Plan plan_of_rows(std::vector<std::string> devices,
                  const std::vector<std::vector<int64_t>>& microbatches) {
  Plan plan;
  Stage stage;
  stage.mesh = {{"data"}, {static_cast<int64_t>(devices.size())}, std::move(devices)};
  Pipeline pipeline;
  pipeline.stages = {std::move(stage)};
  for (const std::vector<int64_t>& lengths : microbatches) {
    const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    pipeline.microbatches.push_back({rows, lengths});
    plan.global_batch += rows;
  }
  plan.pipelines = {std::move(pipeline)};
  return plan;
}

Plan empty_plan(const Request& request) {
  Plan plan;
  plan.strategy = request.strategy;
  plan.graph_hash = request.cache.analysis->graph_hash;
  plan.cluster_hash = hash(request.cluster);
  plan.global_batch = request.global_batch;
  return plan;
}

Plan empty_plan(const Request& request,
                const std::vector<int>& devices,
                const std::vector<int64_t>& rows,
                int64_t microbatches) {
  Plan plan = empty_plan(request);
  plan.pipelines = plan_of_rows(names_of(request.cluster, devices), {rows}).pipelines;
  only_pipeline(plan).microbatches = cut_into_microbatches(rows, microbatches);
  return plan;
}

namespace {

// Returns the plan with the fewest micro-batches that fit, or the requested number.
Outcome with_microbatches(const Request& request,
                          const std::vector<int>& devices,
                          const std::vector<int64_t>& rows) {
  const auto attempt = [&](int64_t microbatches) {
    Plan plan = empty_plan(request, devices, rows, microbatches);
    std::optional<Misfit> misfit = find_misfit(plan, request);
    return std::pair(std::move(plan), std::move(misfit));
  };
  const std::string& meet = request.cache.analysis->coupling;
  if (std::optional<Infeasible> no = refuse_cross_sample(request)) return std::move(*no);
  // A search for the fastest plan needs no details of a misfit.
  if (request.cache.outcomes && !has_room_for_replicas(request))
    return Infeasible{"a device has no memory for all parameters"};

  const int64_t first = std::max<int64_t>(1, request.microbatches);
  const int64_t last = request.microbatches > 0 || !meet.empty()
                           ? first
                           : std::min(kMostMicrobatches, *std::ranges::max_element(rows));
  auto [plan, misfit] = attempt(first);
  if (!misfit) return plan;
  int64_t too_few = first;
  int64_t enough = first;
  while (misfit) {
    if (enough == last || (enough >= kManyMicrobatches && misfit->of_any_count))
      return explain_misfit(plan, request);
    too_few = enough;
    // If no number fits, only the deficit is needed.
    enough = misfit->of_any_count ? std::min(last, kManyMicrobatches) : std::min(2 * enough, last);
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
  size_t next = 0;  // next to take a row more
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

std::vector<int64_t> step_rows(const Plan& plan) {
  const std::vector<Microbatch>& microbatches = only_pipeline(plan).microbatches;
  std::vector<int64_t> rows(std::max<size_t>(1, microbatches[0].lengths.size()), 0);
  for (const Microbatch& microbatch : microbatches)
    for (size_t d = 0; d < rows.size(); ++d)
      rows[d] += microbatch.lengths.empty() ? microbatch.rows : microbatch.lengths[d];
  return rows;
}

Plan with_rows(Plan plan, const std::vector<int64_t>& rows, int64_t microbatches) {
  std::vector<Microbatch>& all = only_pipeline(plan).microbatches;
  const bool replicated = all[0].lengths.empty();
  plan.global_batch = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  all = cut_into_microbatches(rows, microbatches);
  if (replicated)
    for (Microbatch& microbatch : all) microbatch.lengths.clear();
  return plan;
}

std::vector<double> speeds_of(const Request& request, const std::vector<int>& devices) {
  std::vector<double> speeds;
  for (const RowTime& time : row_times(request, devices)) speeds.push_back(1 / time.per_row);
  return of_largest(std::move(speeds));
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
