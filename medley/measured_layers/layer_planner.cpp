#include "medley/measured_layers/layer_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/schedules.h"

namespace medley {
namespace {

void verify(const LayerRequest& request) {
  const auto refuse = [](const std::string& what) { throw Error(Blame::kCaller, what); };
  if (request.global_batch < 1)
    refuse(fmt::format("global batch: found {}, expected at least 1", request.global_batch));
  if (request.microbatches > 0 && request.global_batch % request.microbatches != 0)
    refuse(fmt::format("micro-batches: found {}, expected a number that divides the {} rows",
                       request.microbatches,
                       request.global_batch));
}

// Returns numbers of micro-batches, most first.
std::vector<int> counts_of(const LayerRequest& request) {
  constexpr int64_t kMostTried = int64_t{1} << 20;
  if (request.microbatches > 0)
    return {static_cast<int>(std::min(kMostTried, request.microbatches))};
  std::vector<int> counts;
  for (int64_t count = std::min(kMostTried, request.global_batch); count >= 1; --count)
    if (request.global_batch % count == 0) counts.push_back(static_cast<int>(count));
  return counts;
}

// Returns sizes of a stage: replicas that can divide the batch, times a degree.
std::vector<int> sizes_of(const TableCosts& costs, int pool, int64_t global_batch) {
  std::set<int> sizes;
  for (const int degree : costs.degrees(pool))
    for (int replicas = 1; replicas * degree <= costs.devices(pool); ++replicas)
      if (global_batch % replicas == 0) sizes.insert(replicas * degree);
  return {sizes.begin(), sizes.end()};
}

bool dominates(const StageOption& a, const StageOption& b) {
  return a.forward <= b.forward && a.backward <= b.backward && a.update <= b.update &&
         a.persistent <= b.persistent && a.saved <= b.saved && a.transient <= b.transient;
}

// Options by number of rows, computed on demand.
class Options {
 public:
  explicit Options(const TableCosts& costs) : costs_(costs) {}

  const std::vector<StageOption>& at(const StageRange& range, int64_t rows) {
    auto& known = by_rows_[rows];
    const auto [found, fresh] = known.try_emplace(range);
    if (fresh) found->second = ask(range, rows);
    return found->second;
  }

 private:
  std::vector<StageOption> ask(const StageRange& range, int64_t rows) const {
    std::vector<StageOption> options;
    for (const int degree : costs_.degrees(range.pool)) {
      if (range.devices % degree != 0) continue;
      const LayerMesh mesh{range.pool, range.devices / degree, degree};
      auto option = costs_.stage(range.begin, range.end, mesh, rows);
      if (option) stand_still(range, rows, *option);
      if (!option || option->forward + option->backward >= kLongest) continue;
      const auto worse = [&](const StageOption& other) { return dominates(other, *option); };
      if (std::ranges::any_of(options, worse)) continue;
      std::erase_if(options, [&](const StageOption& other) { return dominates(*option, other); });
      options.push_back(*option);
    }
    return options;
  }

  // Adds blocking transfers to the stage, assuming neighbours of its pool and size. The timer uses
  // the actual ones.
  void stand_still(const StageRange& range, int64_t rows, StageOption& option) const {
    if (costs_.table().run.blocking == 0) return;
    const auto link = costs_.link(range.pool, range.devices, range.pool, range.devices);
    if (!link) return;
    for (const int layer : {range.begin - 1, range.end - 1}) {
      if (layer < 0 || layer + 1 == costs_.layers()) continue;
      const Nanoseconds time = costs_.transfer(*link, costs_.cut(layer, rows));
      option.forward += time;
      option.backward += time;
    }
  }

  const TableCosts& costs_;
  std::map<int64_t, std::map<StageRange, std::vector<StageOption>>> by_rows_;
};

LayerPlan empty_plan(const LayerRequest& request, int microbatches) {
  LayerPlan plan;
  plan.table_hash = request.costs.table_hash();
  plan.cluster_hash = request.costs.cluster_hash();
  plan.global_batch = request.global_batch;
  plan.microbatches = microbatches;
  return plan;
}

LayerPlan to_layer_plan(const PipelinePlan& found, const LayerRequest& request) {
  LayerPlan plan = empty_plan(request, found.microbatches);
  for (const PipelineStage& stage : found.stages)
    plan.stages.push_back({stage.range.begin,
                           stage.range.end,
                           request.costs.cluster().pools[at(stage.range.pool)].name,
                           stage.range.devices / stage.option.id,
                           stage.option.id,
                           1});
  return plan;
}

bool runs(const LayerPlan& plan, const TableCosts& costs) {
  try {
    verify(plan, costs);
  } catch (const Error&) {  // not measured, or no link
    return false;
  }
  return true;
}

using Found = std::variant<LayerOutcome, Infeasible>;

// Keeps the faster one of two.
void keep(Found& best, Found other) {
  const auto* one = std::get_if<LayerOutcome>(&best);
  const auto* two = std::get_if<LayerOutcome>(&other);
  if (two && (!one || two->report.step < one->report.step)) best = std::move(other);
}

// Returns a plan with the counts of h1f1b()'s rules, after a few timings. Returns nullopt if no
// micro-batch fits, or no schedule could make it faster than `below`.
std::optional<LayerPlan> roughly_scheduled(LayerPlan plan,
                                           const TableCosts& costs,
                                           Nanoseconds below) {
  const ScheduleRequest request = schedule_request(plan, costs);
  if (std::ranges::min(request.max_in_flight) < 1) return std::nullopt;
  for (const StageTimes& stage : request.times.sizes[0].stages)
    if ((stage.forward + stage.backward) * plan.microbatches >= below) return std::nullopt;
  const std::vector<int> counts = h1f1b(request, 0).counts;
  for (size_t i = 0; i < counts.size(); ++i) plan.stages[i].in_flight = counts[i];
  plan.predicted = time_step(plan, costs, request).step;
  if (plan.predicted >= below) return std::nullopt;
  return plan;
}

// Returns the plan with stages [first, last) replaced by `by`.
LayerPlan replaced(LayerPlan plan, size_t first, size_t last, const std::vector<LayerStage>& by) {
  const auto at = plan.stages.begin();
  const auto gap = plan.stages.erase(at + static_cast<std::ptrdiff_t>(first),
                                     at + static_cast<std::ptrdiff_t>(last));
  plan.stages.insert(gap, by.begin(), by.end());
  for (LayerStage& stage : plan.stages) stage.in_flight = 1;
  return plan;
}

// Adds plans with a layer moved over the boundary after stage i, in either direction.
void add_moves(const LayerPlan& plan, size_t i, std::vector<LayerPlan>& near) {
  const LayerStage &one = plan.stages[i], &two = plan.stages[i + 1];
  for (const int way : {-1, 1}) {
    LayerStage first = one, second = two;
    first.end = second.begin = one.end + way;
    if (first.begin < first.end && second.begin < second.end)
      near.push_back(replaced(plan, i, i + 2, {first, second}));
  }
}

// Returns the valid plans one step away. A step moves a layer over a boundary, merges two stages
// into one of them, or splits a stage's layers and replicas in half. It also may swap two stages of
// different pools, or halve or double a stage's replicas, perhaps with a moved layer.
std::vector<LayerPlan> neighbours(const LayerPlan& plan, const TableCosts& costs) {
  std::vector<LayerPlan> near;
  const size_t boundaries = plan.stages.size() - 1;
  for (size_t i = 0; i <= boundaries; ++i) {
    LayerStage narrow = plan.stages[i], wide = plan.stages[i];
    narrow.replicas *= 2, narrow.tensor_parallel /= 2;
    wide.replicas /= 2, wide.tensor_parallel *= 2;
    for (const LayerStage& other : {narrow, wide}) {
      if (other.replicas * other.tensor_parallel !=
          plan.stages[i].replicas * plan.stages[i].tensor_parallel)
        continue;
      const LayerPlan changed = replaced(plan, i, i + 1, {other});
      near.push_back(changed);
      if (i > 0) add_moves(changed, i - 1, near);
      if (i < boundaries) add_moves(changed, i, near);
    }
    if (LayerStage first = plan.stages[i], second = first;
        first.replicas % 2 == 0 && first.end - first.begin >= 2) {
      first.replicas = second.replicas = first.replicas / 2;
      first.end = second.begin = (first.begin + first.end) / 2;
      near.push_back(replaced(plan, i, i + 1, {first, second}));
    }
    if (i == boundaries) break;
    if (LayerStage first = plan.stages[i + 1], second = plan.stages[i]; first.pool != second.pool) {
      const int layers = first.end - first.begin;
      second.end = first.end;
      first.begin = plan.stages[i].begin;
      first.end = second.begin = first.begin + layers;
      near.push_back(replaced(plan, i, i + 2, {first, second}));
    }
    add_moves(plan, i, near);
    for (LayerStage whole : {plan.stages[i], plan.stages[i + 1]}) {
      whole.begin = plan.stages[i].begin;
      whole.end = plan.stages[i + 1].end;
      near.push_back(replaced(plan, i, i + 2, {whole}));
    }
  }
  std::erase_if(near, [&](const LayerPlan& other) { return !runs(other, costs); });
  return near;
}

// Moves to a better neighbour while one exists.
LayerPlan improved(LayerPlan plan, const TableCosts& costs) {
  for (bool better = true; better;) {
    better = false;
    for (LayerPlan& other : neighbours(plan, costs))
      if (auto next = roughly_scheduled(std::move(other), costs, plan.predicted)) {
        plan = std::move(*next);
        better = true;
        break;
      }
  }
  return plan;
}

// Searches plans with one of these micro-batch counts whose stages have at least `narrowest`
// devices, or a power of two times that.
void search(const LayerRequest& request,
            const std::vector<int>& counts,
            int narrowest,
            bool wider,
            std::vector<LayerPlan>& candidates,
            std::string& reason) {
  const TableCosts& costs = request.costs;
  Options options(costs);
  PipelineRequest asked;
  asked.layers = costs.layers();
  int widest = narrowest;
  for (int p = 0; p < costs.pools(); ++p) {
    const std::vector<int> sizes = sizes_of(costs, p, request.global_batch);
    asked.pools.push_back({costs.cluster().pools[at(p)].name,
                           costs.devices(p),
                           sizes.empty() ? std::vector<int>{1} : sizes,
                           costs.memory(p)});
    if (!sizes.empty()) widest = std::max(widest, sizes.back());
    std::vector<std::optional<LinkCurve>> row;
    for (int q = 0; q < costs.pools(); ++q) row.push_back(costs.link(p, narrowest, q, narrowest));
    asked.links.push_back(std::move(row));
  }
  for (int64_t times = 1; times * narrowest <= widest && (times == 1 || wider); times *= 2)
    for (const int count : counts) {
      const int64_t rows = request.global_batch / count;
      MicrobatchChoice choice;
      choice.count = count;
      for (int layer = 0; layer + 1 < costs.layers(); ++layer) {
        const Bytes bytes = costs.cut(layer, rows) / times;
        choice.cuts.push_back({bytes, bytes});
      }
      choice.options = [&options, rows, least = times * narrowest](const StageRange& range) {
        return range.devices < least ? std::vector<StageOption>{} : options.at(range, rows);
      };
      asked.microbatches.push_back(std::move(choice));
    }
  const auto found = plan_pipeline(asked);
  if (const auto* no = std::get_if<Infeasible>(&found)) {
    reason = no->reason;
    return;
  }
  for (const PipelinePlan& each : std::get<PipelinePlans>(found).plans)
    if (auto plan = roughly_scheduled(to_layer_plan(each, request), costs, {INT64_MAX}))
      candidates.push_back(std::move(*plan));
}

// Returns the best few for each list of counts, in sequence.
std::vector<LayerPlan> best_few(const LayerRequest& request,
                                const std::vector<std::vector<int>>& counts,
                                std::string& reason) {
  constexpr size_t kKeptOfList = 3;
  int node = 1;
  for (int p = 0; p < request.costs.pools(); ++p)
    node = std::max(node, request.costs.devices_per_node(p));
  struct Search {
    size_t list;
    int narrowest;
    std::vector<LayerPlan> found = {};
    std::string reason = {};
  };
  std::vector<Search> searches;
  for (size_t list = 0; list < counts.size(); ++list) {
    searches.push_back({list, node});
    for (int narrow = 1; narrow < node; narrow *= 2) searches.push_back({list, narrow});
  }
  for_each_in_parallel(searches.size(), [&](size_t i) {
    Search& each = searches[i];
    const bool wider = each.narrowest == node;
    search(request, counts[each.list], each.narrowest, wider, each.found, each.reason);
  });
  std::vector<LayerPlan> all;
  for (size_t list = 0; list < counts.size(); ++list) {
    std::vector<LayerPlan> found;
    for (const Search& each : searches) {
      if (each.list != list) continue;
      found.insert(found.end(), each.found.begin(), each.found.end());
      if (!each.reason.empty()) reason = each.reason;
    }
    std::ranges::stable_sort(found, {}, &LayerPlan::predicted);
    found.resize(std::min(found.size(), kKeptOfList));
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

// Returns the stages of a grid, none if pools cannot be divided like this.
std::vector<LayerStage> grid_stages(const TableCosts& costs, int stages, int degree) {
  int devices = 0;
  for (int p = 0; p < costs.pools(); ++p) devices += costs.devices(p);
  std::vector<LayerStage> grid;
  if (devices % (stages * degree) != 0) return grid;
  const int each = devices / stages;
  for (int p = 0; p < costs.pools(); ++p) {
    if (costs.devices(p) % each != 0 || costs.devices_per_node(p) % degree != 0) return {};
    for (int i = 0; i < costs.devices(p) / each; ++i) {
      const auto number = static_cast<int>(grid.size());
      grid.push_back({costs.layers() * number / stages,
                      costs.layers() * (number + 1) / stages,
                      costs.cluster().pools[at(p)].name,
                      each / degree,
                      degree,
                      1});
    }
  }
  return grid;
}

// Returns the first reason why no stage of any pool can run with these counts; "" if one can.
std::string unmeasured(const LayerRequest& request, const std::vector<int>& counts) {
  const TableCosts& costs = request.costs;
  std::string first;
  for (const int count : counts)
    for (int p = 0; p < costs.pools(); ++p)
      for (const int degree : costs.degrees(p))
        for (int replicas = 1; replicas * degree <= costs.devices(p); ++replicas) {
          const int64_t rows = request.global_batch / count;
          if (rows % replicas != 0) continue;
          const std::string why = costs.misfit({p, replicas, degree}, rows);
          if (why.empty()) return "";
          if (first.empty()) first = why;
        }
  return "no stage was measured: " + first;
}

}  // namespace

std::string to_string(const LeftOut& pool) {
  return fmt::format("{} of {}: {}", pool.devices, pool.pool, pool.why);
}

std::vector<LeftOut> left_out(const TableCosts& costs) {
  std::vector<LeftOut> out;
  for (int p = 0; p < costs.pools(); ++p)
    if (std::string why = costs.unmeasured(p); !why.empty())
      out.push_back({costs.cluster().pools[at(p)].name, costs.devices(p), std::move(why)});
  return out;
}

std::vector<LeftOut> left_out(const LayerPlan& plan, const TableCosts& costs) {
  std::vector<int> used(at(costs.pools()));
  for (int p = 0; p < costs.pools(); ++p)
    for (const LayerStage& stage : plan.stages)
      if (stage.pool == costs.cluster().pools[at(p)].name)
        used[at(p)] += stage.replicas * stage.tensor_parallel;
  std::vector<LeftOut> out = left_out(costs);
  for (int p = 0; p < costs.pools(); ++p) {
    const int devices = costs.devices(p) - used[at(p)];
    if (devices == 0 || !costs.unmeasured(p).empty()) continue;
    bool is_linked = used[at(p)] > 0;
    for (int q = 0; q < costs.pools(); ++q)
      if (used[at(q)] > 0 && costs.linked(p, q) && costs.linked(q, p)) is_linked = true;
    std::string why = "the best plan found is faster without them";
    if (!is_linked)
      why = "no network links them to those of the plan";
    else if (used[at(p)] > 0 && !costs.links_nodes(p))
      why = "no network links the nodes";
    out.push_back({costs.cluster().pools[at(p)].name, devices, std::move(why)});
  }
  return out;
}

std::variant<LayerOutcome, Infeasible> scheduled(LayerPlan plan,
                                                 std::string_view schedule,
                                                 const TableCosts& costs) {
  const ScheduleRequest request = schedule_request(plan, costs);
  for (size_t i = 0; i < plan.stages.size(); ++i)
    if (request.max_in_flight[i] < 1)
      return Infeasible{
          fmt::format("stage {} (layers {} to {}) on {} has no memory for one micro-batch",
                      i,
                      plan.stages[i].begin,
                      plan.stages[i].end - 1,
                      plan.stages[i].pool)};
  const std::vector<int> counts = peak_in_flight(find_schedule(schedule).order(request));
  for (size_t i = 0; i < counts.size(); ++i) plan.stages[i].in_flight = counts[i];
  plan.schedule = schedule;
  LayerStepTimes report = time_step(plan, costs, request);
  plan.predicted = report.step;
  return LayerOutcome{std::move(plan), std::move(report)};
}

std::variant<LayerOutcome, Infeasible> plan_layers(const LayerRequest& request) {
  verify(request);
  const std::vector<int> counts = counts_of(request);
  std::string reason = unmeasured(request, counts);
  if (!reason.empty()) return Infeasible{reason};
  // Takes the best few over all counts, and over the next larger and smaller count than the best
  // one's, which the search may rank slightly lower. Each is improved locally.
  std::vector<LayerPlan> candidates = best_few(request, {counts}, reason);
  if (!candidates.empty()) {
    const auto best = std::ranges::find(counts, candidates[0].microbatches);
    std::vector<std::vector<int>> beside;
    if (best != counts.begin()) beside.push_back({*std::prev(best)});
    if (std::next(best) != counts.end()) beside.push_back({*std::next(best)});
    for (LayerPlan& plan : best_few(request, beside, reason)) candidates.push_back(std::move(plan));
  }
  std::vector<Found> found(candidates.size());
  for_each_in_parallel(found.size(), [&](size_t i) {
    found[i] = scheduled(improved(std::move(candidates[i]), request.costs), "h1f1b", request.costs);
  });
  Found best = Infeasible{reason};
  for (Found& each : found) keep(best, std::move(each));
  if (auto* kept = std::get_if<LayerOutcome>(&best))
    for (const LeftOut& each : left_out(kept->plan, request.costs))
      kept->plan.left_out.push_back(to_string(each));
  return best;
}

std::variant<LayerOutcome, Infeasible> plan_grid(const LayerRequest& request) {
  verify(request);
  const TableCosts& costs = request.costs;
  std::variant<LayerOutcome, Infeasible> best = Infeasible{"no grid of equal stages fits"};
  std::set<int> degrees;
  for (int p = 0; p < costs.pools(); ++p)
    degrees.insert(costs.degrees(p).begin(), costs.degrees(p).end());
  for (int stages = 1; stages <= costs.layers(); ++stages)
    for (const int degree : degrees)
      for (const int count : counts_of(request)) {
        LayerPlan plan = empty_plan(request, count);
        plan.stages = grid_stages(costs, stages, degree);
        if (plan.stages.empty() || !runs(plan, costs)) continue;
        keep(best, scheduled(std::move(plan), "1f1b", costs));
      }
  return best;
}

}  // namespace medley
