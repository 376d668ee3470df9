#include "medley/planner/stage_options.h"

#include <algorithm>
#include <array>
#include <map>

#include "medley/base/error.h"
#include "medley/plan/apportion.h"
#include "medley/planner/spmd_problem.h"
#include "medley/program/calls.h"
#include "medley/program/memory.h"
#include "medley/sim/stage_times.h"

namespace medley {
namespace {

// In ticks per byte: fastest, in less memory, in as little as possible.
constexpr std::array kBytePrices{0.0, 1.0, 1e3};

// With so many in flight a mesh that has room for the whole model needs no other options.
constexpr int64_t kPlenty = 16;

constexpr int kDualRounds = 20;
constexpr int64_t kMicrobatches = 3;  // of a stage by itself: a first, a usual and a last one

Plan outline(const Request& request, const StageMesh& mesh, const StageWork& work) {
  Plan plan;
  plan.global_batch = kMicrobatches * work.rows;
  Stage stage;
  const auto count = static_cast<int64_t>(mesh.devices.size());
  stage.mesh = {{"data"}, {count}, {}};
  for (int device : mesh.devices)
    stage.mesh.devices.push_back(request.cluster.devices[static_cast<size_t>(device)].name);
  Microbatch microbatch{work.rows, {}};
  if (work.style == StageStyle::kData || (work.style == StageStyle::kBest && work.rows >= count))
    microbatch.lengths = apportion(work.rows, std::vector<double>(mesh.devices.size(), 1.0));
  Pipeline pipeline;
  pipeline.microbatches.assign(static_cast<size_t>(kMicrobatches), microbatch);
  pipeline.stages = {std::move(stage)};
  plan.pipelines = {std::move(pipeline)};
  return plan;
}

// Of the first device, which has the longest shards of all; times of the slowest kind.
StageOption price(const LoweredStage& stage, const CostModel& costs) {
  std::map<std::string, FunctionTimes> kinds;
  StageOption option;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    const auto [times, is_new] = kinds.try_emplace(costs.cluster().kind(stage.devices[d]).name);
    if (!is_new) continue;
    times->second = time_functions(stage, costs, static_cast<int>(d));
    option.forward = std::max(option.forward, times->second.forward);
    option.backward = std::max(option.backward, times->second.backward);
    option.update = std::max(option.update, times->second.update);
  }
  const MemoryUse use = memory_use(stage, 0);
  option.persistent = {use.persistent + use.at_peak[static_cast<size_t>(MemoryPart::kGradients)]};
  option.saved = {use.saved[0]};
  option.transient = std::max(Bytes{}, Bytes{use.peak} - option.persistent - option.saved);
  return option;
}

bool is_worse(const StageOption& a, const StageOption& b) {
  return a.forward + a.backward >= b.forward + b.backward && a.update >= b.update &&
         a.persistent >= b.persistent && a.saved >= b.saved && a.transient >= b.transient;
}

}  // namespace

StageSynthesis::StageSynthesis(const Request& request, const LayerOptions& options)
    : request_(request),
      names_(stable_names(request.ground->graph)),
      positions_(place(request.ground->graph)),
      layers_(find_layers(request.ground->graph, positions_, options)) {}

const Completed& StageSynthesis::ground(int begin, int end) {
  const auto [found, is_new] = grounds_.try_emplace({begin, end});
  if (is_new) {
    const int last = static_cast<int>(layers_.layers.size());
    std::vector<int> cuts;
    if (begin > 0) cuts.push_back(begin);
    if (end < last) cuts.push_back(end);
    const Partition parts =
        partition(request_.ground->graph, positions_, cuts_at(layers_, cuts), names_);
    found->second = prepare_stage(*request_.ground, names_, parts, begin > 0 ? 1 : 0);
  }
  return found->second;
}

std::optional<StageSolution> StageSynthesis::synthesise(const Task& task) {
  ++num_syntheses_;
  const Completed& own = ground(task.begin, task.end);
  Plan plan = outline(request_, task.mesh, task.work);
  Pipeline& pipeline = plan.pipelines[0];
  if (task.mesh.devices.size() > 1 && task.work.style != StageStyle::kData) {
    SpmdMesh mesh(
        *request_.costs, task.mesh.devices, parts_of(plan, pipeline), pipeline.microbatches[0]);
    OpCatalogue catalogue(own.prepared.graph, own.factors, std::move(mesh), {});
    SpmdOptions options;
    options.microbatches = task.work.microbatches;
    options.byte_price = task.work.byte_price;
    options.sends_as_received = task.layer;
    const SpmdProblem problem(own.prepared, catalogue, options);
    PbqpOptions search;
    search.rounds = kDualRounds;
    const std::optional<PbqpSolution> found = solve(problem.pbqp(), search);
    if (!found) return std::nullopt;
    pipeline.stages[0] = problem.stage(found->choices, pipeline.stages[0].mesh);
  }
  StageSolution solution;
  solution.option = price(lower_alone(own, plan, request_.cluster), *request_.costs);
  solution.by_rows = !pipeline.microbatches[0].lengths.empty();
  solution.stage = std::move(pipeline.stages[0]);
  return solution;
}

const std::optional<StageSolution>& StageSynthesis::whole(int begin,
                                                          int end,
                                                          const StageMesh& mesh,
                                                          const StageWork& work) {
  const Task task{begin, end, mesh, work, false};
  const auto [found, is_new] = solved_.try_emplace(task);
  if (is_new) found->second = synthesise(task);
  return found->second;
}

// Of layers with the same structure the first one is synthesised.
const std::optional<StageOption>& StageSynthesis::layer(int index, Task task) {
  const auto& all = layers_.layers;
  const auto same = std::find_if(all.begin(), all.end(), [&](const Layer& each) {
    return each.structure == all[static_cast<size_t>(index)].structure;
  });
  task.begin = static_cast<int>(same - all.begin());
  task.end = task.begin + 1;
  const auto [found, is_new] = of_layers_.try_emplace(task);
  if (is_new)
    if (const std::optional<StageSolution> solution = synthesise(task))
      found->second = solution->option;
  return found->second;
}

// [number of layers] from task.begin on, as far as there are solutions.
const std::vector<StageOption>& StageSynthesis::sums(const Task& task) {
  const auto [found, is_new] = sums_.try_emplace(task);
  std::vector<StageOption>& sums = found->second;
  if (!is_new) return sums;
  sums.emplace_back();
  for (int i = task.begin; i < static_cast<int>(layers_.layers.size()); ++i) {
    const std::optional<StageOption>& one = layer(i, task);
    if (!one) break;
    StageOption sum = sums.back();
    sum.forward += one->forward;
    sum.backward += one->backward;
    sum.update += one->update;
    sum.persistent += one->persistent;
    sum.saved += one->saved;
    sum.transient = std::max(sum.transient, one->transient);
    sums.push_back(sum);
  }
  return sums;
}

std::vector<StageOption> StageSynthesis::options(int begin,
                                                 int end,
                                                 const StageMesh& mesh,
                                                 const StageWork& work) {
  std::vector<StageOption> result;
  const Bytes memory{static_cast<int64_t>(request_.cluster.kind(mesh.devices[0]).memory_bytes)};
  for (size_t p = 0; p < kBytePrices.size(); ++p) {
    Task task{begin, 0, mesh, work, true};
    task.work.byte_price = kBytePrices[p];
    const std::vector<StageOption>& all = sums(task);
    if (static_cast<size_t>(end - begin) >= all.size()) continue;
    StageOption option = all[static_cast<size_t>(end - begin)];
    if (option.forward + option.backward + option.update >= kLongest) continue;
    option.id = static_cast<int>(p);
    if (std::none_of(result.begin(), result.end(), [&](const StageOption& other) {
          return is_worse(option, other);
        }))
      result.push_back(option);
    if (mesh.devices.size() == 1 ||
        option.persistent + option.transient + option.saved * kPlenty <= memory)
      break;
  }
  return result;
}

std::vector<int64_t> microbatch_counts(const Request& request) {
  constexpr int64_t kMost = 256;
  if (request.microbatches > 0) return {request.microbatches};
  if (!request.ground->coupled_at.empty() || !request.ground->prepared.weights_in_prologue)
    return {1};
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= std::min(kMost, request.global_batch); count *= 2)
    counts.push_back(count);
  return counts;
}

double StageSynthesis::byte_price(const StageOption& option) {
  return kBytePrices[static_cast<size_t>(option.id)];
}

}  // namespace medley
