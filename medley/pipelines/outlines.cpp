#include "medley/pipelines/outlines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/plan/apportion.h"
#include "medley/program/lower.h"
#include "medley/program/memory.h"
#include "medley/schedule/h1f1b.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/shorten.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {
namespace {

constexpr int kMostMends = 8;  // of a plan that does not fit
constexpr double kClearlySlower = 1.02;
constexpr int64_t kFull = 8;  // micro-batches simulated beyond three times those in flight

size_t at(int64_t index) { return static_cast<size_t>(index); }

Bytes least_memory(const Cluster& cluster, const std::vector<int>& devices) {
  double least = cluster.kind(devices[0]).memory_bytes;
  for (int device : devices) least = std::min(least, cluster.kind(device).memory_bytes);
  return {static_cast<int64_t>(least)};
}

// The first micro-batches only.
Plan shortened(Plan plan, int64_t microbatches) {
  std::vector<Microbatch>& all = plan.pipelines[0].microbatches;
  all.resize(static_cast<size_t>(microbatches));
  plan.global_batch = 0;
  for (const Microbatch& microbatch : all) plan.global_batch += microbatch.rows;
  return plan;
}

Bytes needed(const StageOption& option, int in_flight) {
  return option.persistent + option.transient + option.saved * in_flight;
}

// For how many micro-batches there is room.
int room(const StageOption& option, Bytes free, int most) {
  if (free < Bytes{}) return 0;
  if (option.saved <= Bytes{}) return most;
  return static_cast<int>(std::min<int64_t>(free.value / option.saved.value, most));
}

// By the timer.
Nanoseconds time_of(const PipelinePlan& plan) {
  return h1f1b(schedule_request(plan)).finish +
         std::max(plan.stages[0].option.update, plan.exchange);
}

void recompute(StageWork& work, std::string_view how, int in_flight) {
  work.recompute = how;
  work.in_flight = how == kRecompute[2] ? in_flight : 1;
}

// The inputs of a micro-batch on the first device, which has most rows.
int64_t batch_bytes(const LoweredStage& stage) {
  int64_t sum = 0;
  for (const Input& input : stage.graph.inputs)
    if (input.kind == InputKind::kBatch)
      sum += num_bytes(type_of(stage.graph, input.value), stage.tables[0][0]);
  return sum;
}

}  // namespace

Outlines::Outlines(const Request& request,
                   const std::vector<DevicePool>& pools,
                   StageSynthesis& synthesis)
    : request_(request),
      pools_(pools),
      synthesis_(synthesis),
      links_(links_of(pools, request.costs->topology())) {
  for (const DevicePool& pool : pools) {
    const Device& first = request.cluster.devices[at(pool.devices[0])];
    const int devices = static_cast<int>(pool.devices.size());
    std::vector<int> sizes = mesh_sizes(pool.piece_of < 0 ? pool : pools[at(pool.piece_of)]);
    std::erase_if(sizes, [&](int size) { return size > devices; });
    pipeline_pools_.push_back({request.cluster.pools[at(first.pool)].name,
                               devices,
                               std::move(sizes),
                               least_memory(request.cluster, pool.devices)});
  }
  find_tied();
}

void Outlines::find_tied() {
  const Graph& graph = request_.ground->graph;
  const std::vector<Layer>& layers = synthesis_.layers().layers;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), 1);
  std::map<ValueId, std::set<int>> readers;
  for (size_t l = 0; l < layers.size(); ++l)
    for (const ValueId parameter : layers[l].parameters)
      readers[parameter].insert(static_cast<int>(l));
  for (auto& [parameter, read] : readers)
    if (read.size() > 1)
      tied_.push_back({{num_bytes(type_of(graph, parameter), symbols)}, std::move(read)});
}

int64_t Outlines::rows(int64_t microbatches) const {
  return (request_.global_batch + microbatches - 1) / microbatches;
}

std::vector<CutBytes> Outlines::cuts(int64_t microbatches) const {
  const Graph& graph = request_.ground->graph;
  const std::vector<Layer>& layers = synthesis_.layers().layers;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), rows(microbatches));
  std::vector<CutBytes> cuts;
  for (size_t l = 0; l + 1 < layers.size(); ++l)
    cuts.push_back({{evaluate(total_bytes(graph, layers[l].up), symbols)},
                    {evaluate(total_bytes(graph, layers[l].down), symbols)}});
  return cuts;
}

Bytes Outlines::shared() const {
  const int last = static_cast<int>(synthesis_.layers().layers.size()) - 1;
  Bytes sum;
  for (const Tied& tied : tied_)
    if (tied.layers.contains(0) && tied.layers.contains(last)) sum += tied.bytes;
  return sum;
}

StageMesh Outlines::mesh(const StageRange& range) const {
  const int whole = pools_[at(range.pool)].piece_of;
  const std::vector<int>& all = pools_[at(whole < 0 ? range.pool : whole)].devices;
  return {{all.begin(), all.begin() + range.devices}};
}

StageTask Outlines::task(const Outline& outline, size_t stage) const {
  const StageRange& range = outline.stages[stage];
  const StageMesh own = pools_[at(range.pool)].alike
                            ? mesh(range)
                            : StageMesh{lay_out(pools_, outline.stages)[stage]};
  return {range.begin, range.end, own, outline.works[stage]};
}

const std::optional<StageSolution>& Outlines::solution(const Outline& outline, size_t stage) {
  return synthesis_.whole(task(outline, stage));
}

void Outlines::solve(const std::vector<Outline>& outlines) {
  std::vector<StageTask> tasks;
  for (const Outline& outline : outlines)
    for (size_t s = 0; s < outline.stages.size(); ++s) tasks.push_back(task(outline, s));
  synthesis_.solve_wholes(tasks);
}

std::optional<Nanoseconds> Outlines::exchange(const std::vector<StageRange>& ranges) const {
  if (tied_.empty()) return Nanoseconds{};
  const std::vector<std::vector<int>> devices = lay_out(pools_, ranges);
  std::map<std::pair<int, int>, Nanoseconds> busy;  // [from pool, to pool]
  Nanoseconds most;
  for (const Tied& tied : tied_) {
    const auto reads = [&](size_t s) {
      const auto first = tied.layers.lower_bound(ranges[s].begin);
      return first != tied.layers.end() && *first < ranges[s].end;
    };
    for (size_t from = 0; from < ranges.size(); ++from)
      for (size_t to = 0; to < ranges.size(); ++to) {
        if (from == to || !reads(from) || !reads(to)) continue;
        const std::optional<Nanoseconds> time = exchange_time(
            link_of(request_.costs->topology(), devices[from][0], devices[to][0]), tied.bytes);
        if (!time) return std::nullopt;
        Nanoseconds& sum = busy[{ranges[from].pool, ranges[to].pool}];
        sum += *time;
        most = std::max(most, sum);
      }
  }
  return most;
}

// The stages of an outline as they are when each is synthesised as a whole. Some may have no room.
std::optional<PipelinePlan> Outlines::stages(const Outline& outline,
                                             const std::vector<Unseen>& unseen) {
  PipelinePlan plan;
  plan.microbatches = static_cast<int>(outline.microbatches);
  const std::vector<CutBytes> cuts = this->cuts(outline.microbatches);
  const std::vector<std::vector<int>> devices = lay_out(pools_, outline.stages);
  for (size_t s = 0; s < outline.stages.size(); ++s) {
    const std::optional<StageSolution>& solved = solution(outline, s);
    if (!solved) return std::nullopt;
    PipelineStage stage{outline.stages[s], solved->option, 1, plan.microbatches};
    const Bytes free = pipeline_pools_[at(stage.range.pool)].memory - needed(stage.option, 0);
    stage.room = room(stage.option, free, plan.microbatches);
    if (!unseen.empty() && unseen[s].bytes > Bytes{}) {
      // Part of it may grow with what is in flight.
      const int half = std::min(stage.room, unseen[s].in_flight / 2);
      stage.room = std::max(half, room(stage.option, free - unseen[s].bytes, plan.microbatches));
    }
    plan.stages.push_back(stage);
    if (s == 0) continue;
    const CutBytes& cut = cuts[at(stage.range.begin - 1)];
    const int from = devices[s - 1].back(), to = devices[s].front();
    const Topology& topology = request_.costs->topology();
    const std::optional<LinkCurve> up = link_of(topology, from, to);
    const std::optional<LinkCurve> down = link_of(topology, to, from);
    if (!up || !down) return std::nullopt;
    plan.boundaries.push_back({occupied(*up, cut.up), occupied(*down, cut.down), up->latency});
  }
  const std::optional<Nanoseconds> exchange = this->exchange(outline.stages);
  if (!exchange) return std::nullopt;
  plan.exchange = *exchange;
  return plan;
}

std::optional<PipelinePlan> Outlines::whole(const Outline& outline,
                                            const std::vector<Unseen>& unseen) {
  std::optional<PipelinePlan> plan = stages(outline, unseen);
  if (plan && std::ranges::min(plan->stages, {}, &PipelineStage::room).room < 1) plan.reset();
  return plan;
}

void Outlines::note(const Outline& outline) {
  const std::optional<PipelinePlan> plan = whole(outline);
  if (!plan) return;
  const Nanoseconds time = time_of(*plan);
  const auto as_long = std::ranges::equal_range(noted_, time, {}, &Timed::time);
  if (std::ranges::find(as_long, outline, &Timed::outline) == as_long.end())
    noted_.insert(as_long.end(), {time, outline});
}

void Outlines::note_recomputing(std::vector<Outline> outlines) {
  for (const std::string_view how : {kRecompute[0], kRecompute[2], kRecompute[1]}) {
    if (how != kRecompute[0])
      std::erase_if(outlines, [&](Outline& outline) { return !recompute_more(outline, how); });
    solve(outlines);
    for (const Outline& outline : outlines) note(outline);
  }
}

// Returns whether a stage lacks room for as many micro-batches as hide transfers, and it is of use
// to make some: what computes more takes longer.
bool Outlines::recompute_more(Outline& outline, std::string_view how) {
  std::optional<PipelinePlan> plan = stages(outline, {});
  if (!plan) return false;
  const std::vector<int> wanted = ideal_in_flight(schedule_request(*plan));
  bool lacks = false;
  for (size_t s = 0; s < plan->stages.size(); ++s) {
    if (plan->stages[s].room >= wanted[s]) continue;
    recompute(outline.works[s], how, wanted[s]);
    lacks = true;
  }
  for (PipelineStage& stage : plan->stages) stage.room = plan->microbatches;
  return lacks && (!request_.faster_than || time_of(*plan) < *request_.faster_than);
}

size_t Outlines::slowest_stage(const Outline& outline) {
  size_t slowest = 0;
  Nanoseconds most;
  for (size_t s = 0; s < outline.stages.size(); ++s) {
    const StageOption& option = solution(outline, s)->option;
    if (option.forward + option.backward <= most) continue;
    most = option.forward + option.backward;
    slowest = s;
  }
  return slowest;
}

Plan Outlines::to_plan(const Outline& outline, const std::vector<int>& in_flight) {
  const std::vector<std::vector<int>> devices = lay_out(pools_, outline.stages);
  const auto even = [&](size_t s) {  // over the devices of the first axis
    return std::vector<double>(at(solution(outline, s)->stage.mesh.shape[0]), 1.0);
  };
  Plan plan = empty_plan(
      request_, devices[0], apportion(request_.global_batch, even(0)), outline.microbatches);
  Pipeline& pipeline = plan.pipelines[0];
  pipeline.stages.clear();
  find_unsaid(outline);
  for (size_t s = 0; s < outline.stages.size(); ++s) {
    const StageSolution& solved = *solution(outline, s);
    Stage stage = solved.stage;
    if (unsaid_.at(task(outline, s)))
      for (Choices* said : {&stage.states, &stage.batch, &stage.ops, &stage.updates}) said->clear();
    stage.mesh.devices = names_of(request_.cluster, devices[s]);
    if (s == 0 && !solved.by_rows)
      for (Microbatch& microbatch : pipeline.microbatches) microbatch.lengths.clear();
    if (s > 0) stage.first = name_of_first(outline.stages[s].begin);
    if (s > 0 && solved.by_rows) stage.rows = even(s);
    pipeline.stages.push_back(std::move(stage));
  }
  if (outline.stages.size() > 1) {
    pipeline.schedule = "h1f1b";
    pipeline.in_flight.assign(in_flight.begin(), in_flight.end());
  }
  return plan;
}

// Nothing need be said of a stage where saying nothing is as good.
void Outlines::find_unsaid(const Outline& outline) {
  std::vector<std::pair<const StageTask, bool>*> missing;
  for (size_t s = 0; s < outline.stages.size(); ++s)
    if (const auto [found, is_new] = unsaid_.try_emplace(task(outline, s)); is_new)
      missing.push_back(&*found);
  for_each_in_parallel(missing.size(), [&](size_t i) {
    missing[i]->second = synthesis_.is_as_good_unsaid(missing[i]->first);
  });
}

std::string Outlines::name_of_first(int layer) const {
  const int32_t position = synthesis_.layers().layers[at(layer)].begin;
  const PreparedStages& stages = synthesis_.stages();
  return stages.names()[at(stages.positions().sequence[at(position)])];
}

std::optional<Outlines::Trial> Outlines::trial(const Outline& outline,
                                               const std::vector<Unseen>& unseen) {
  std::optional<PipelinePlan> stages = whole(outline, unseen);
  if (!stages) return std::nullopt;
  std::vector<int> counts = h1f1b(schedule_request(*stages)).counts;
  Plan plan = to_plan(outline, counts);
  return Trial{std::move(*stages), std::move(counts), std::move(plan), {}, {}};
}

void Outlines::lower(Trial& trial) const {
  // Until it is full, as long again, and until it is empty; all, if these are not many more.
  const auto count = static_cast<int64_t>(trial.plan.pipelines[0].microbatches.size());
  const int64_t few = 3 * trial.counts[0] + kFull;
  const Plan some = shortened(trial.plan, count > 2 * few ? few : count);
  trial.program = medley::lower(synthesis_.stages(), some, request_.cluster);
}

// Of so many micro-batches, of which the program has the first. What one more takes is read off the
// backward calls of the first stage while the pipeline is full.
void Outlines::simulate(Trial& trial) const {
  const Simulation simulated = medley::simulate(trial.program, *request_.costs);
  trial.step = simulated.step;
  const auto count = static_cast<int64_t>(trial.plan.pipelines[0].microbatches.size());
  const auto some = static_cast<int64_t>(trial.program.stages[0].tables.size());
  if (some == count) return;
  std::map<FunctionKind, std::vector<Nanoseconds>> by_kind;  // [microbatch]
  for (const SimulatedCall& each : simulated.devices[0].calls)
    by_kind[each.call.function].push_back(each.ends);
  // Where nothing is trained there is no backward call.
  const auto backward = by_kind.find(FunctionKind::kBackward);
  const std::vector<Nanoseconds>& ends =
      backward == by_kind.end() ? by_kind.at(FunctionKind::kForward) : backward->second;
  const int64_t first = trial.counts[0], last = some - trial.counts[0] - 1;
  const Nanoseconds full = ends[static_cast<size_t>(last)] - ends[static_cast<size_t>(first)];
  *trial.step += Nanoseconds{full.value * (count - some) / (last - first)};
}

bool Outlines::consider(Outline outline, std::optional<Trial> trial) {
  std::vector<Unseen> unseen(outline.stages.size());
  for (int mend = 0; mend < kMostMends; ++mend) {
    if (!trial) trial = this->trial(outline, unseen);
    if (!trial) return false;
    if (trial->program.stages.empty()) lower(*trial);
    // Whether it fits need not be known of one that is slower than one that does, and how long it
    // takes need not be known of the first before it fits.
    if (best_ && !trial->step) simulate(*trial);
    if (best_ && *trial->step >= best_step_) return false;
    const std::optional<Lack> lack = find_lack(*trial);
    if (!lack) {
      if (!trial->step) simulate(*trial);
      best_ = std::move(trial->plan);
      best_outline_ = outline;
      best_step_ = *trial->step;
      return mend == 0;
    }
    if (misfit_.empty()) misfit_ = explain(*lack, trial->counts);
    const PipelineStage& stage = trial->stages.stages[lack->stage];
    const int in_flight = trial->counts[lack->stage];
    const Bytes found = pipeline_pools_[at(stage.range.pool)].memory +
                        Bytes{static_cast<int64_t>(std::ceil(lack->bytes))};
    unseen[lack->stage] = {found - needed(stage.option, in_flight), in_flight};
    std::optional<Outline> other = eased(outline, lack->stage, unseen);
    if (!other) return false;
    outline = std::move(*other);
    trial.reset();
  }
  return false;
}

// As it is, with a higher price of memory for a stage, or with more of it computed again: the
// fastest that has room.
std::optional<Outline> Outlines::eased(const Outline& outline,
                                       size_t stage,
                                       const std::vector<Unseen>& unseen) {
  std::optional<Outline> best;
  Nanoseconds least;
  const auto attempt = [&](const Outline& each) {
    const std::optional<PipelinePlan> plan = whole(each, unseen);
    if (!plan) return false;
    const Nanoseconds time = time_of(*plan);
    if (best && time >= least) return true;
    best = each;
    least = time;
    return true;
  };
  attempt(outline);
  Outline other = outline;
  double& price = other.works[stage].byte_price;
  while (outline.stages[stage].devices > 1 && price < kMostBytePrice) {
    price = std::max(1.0, price * kBytePriceStep);
    if (attempt(other)) break;
  }
  other = outline;
  const std::string_view now = outline.works[stage].recompute;
  const std::vector<int> wanted = ideal_in_flight(schedule_request(*stages(outline, {})));
  for (const std::string_view how : {kRecompute[2], kRecompute[1]}) {
    if (how == now) continue;
    recompute(other.works[stage], how, wanted[stage]);
    attempt(other);
  }
  return best;
}

// Of the device that lacks most, where the inputs of micro-batches that are not lowered wait, too.
std::optional<Outlines::Lack> Outlines::find_lack(const Trial& trial) const {
  std::optional<Lack> worst;
  for (const auto& [stage, device, use] : memory_uses(trial.program)) {
    const LoweredStage& lowered = trial.program.stages[static_cast<size_t>(stage)];
    const size_t more = trial.plan.pipelines[0].microbatches.size() - lowered.tables.size();
    const int64_t waiting = static_cast<int64_t>(more) * batch_bytes(lowered);
    const double missing =
        static_cast<double>(use.peak + waiting) - request_.cluster.kind(device).memory_bytes;
    if (missing > 0 && (!worst || missing > worst->bytes))
      worst = Lack{static_cast<size_t>(stage), device, missing};
  }
  return worst;
}

std::string Outlines::explain(const Lack& lack, const std::vector<int>& counts) const {
  return fmt::format("stage {} with {} micro-batches in flight: {} lacks {}",
                     lack.stage,
                     counts[lack.stage],
                     request_.cluster.devices[at(lack.device)].name,
                     to_string(Bytes{static_cast<int64_t>(lack.bytes)}));
}

void Outlines::choose(int most, const std::function<void(int)>& starting) {
  const auto is_another_time = [&](size_t i) {
    return i == 0 || noted_[i].time != noted_[i - 1].time;
  };
  // Those that are considered if the first fits, on all cores.
  std::vector<std::optional<Trial>> trials;
  for (int times = 0; trials.size() < noted_.size();) {
    const auto& [time, outline] = noted_[trials.size()];
    if (is_another_time(trials.size()) && ++times > most) break;
    if (time / noted_[0].time > kClearlySlower) break;
    trials.push_back(trial(outline, {}));
  }
  if (starting) starting(0);
  for_each_in_parallel(trials.size(), [&](size_t i) {
    if (!trials[i]) return;
    lower(*trials[i]);
    simulate(*trials[i]);
  });
  int times = 0;                      // considered
  std::optional<Nanoseconds> fitted;  // of the first one that fits, by the timer
  for (size_t i = 0; i < noted_.size(); ++i) {
    const auto& [time, outline] = noted_[i];
    if (is_another_time(i)) {
      if (best_ && times >= most) break;
      if (fitted && time / *fitted > kClearlySlower) break;
      if (starting && times > 0) starting(times);
      ++times;
    }
    const bool ready = i < trials.size();
    if (consider(outline, ready ? std::move(trials[i]) : std::nullopt) && !fitted) fitted = time;
  }
}

void Outlines::join_axes() {
  if (!best_) return;
  Outline joined = best_outline_;
  std::vector<Outline> ways;
  std::vector<size_t> stages;
  for (size_t s = 0; s < joined.stages.size(); ++s)
    if (const auto work = synthesis_.on_nodes(task(joined, s).mesh, joined.works[s])) {
      ways.push_back(joined);
      ways.back().works[s] = *work;
      stages.push_back(s);
    }
  solve(ways);
  const auto step = [&](const StageOption& option) {
    return (option.forward + option.backward) * joined.microbatches + option.update;
  };
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto &now = solution(joined, stages[i]), &other = solution(ways[i], stages[i]);
    if (other && step(other->option) < step(now->option))
      joined.works[stages[i]] = ways[i].works[stages[i]];
  }
  if (joined != best_outline_) consider(joined);
}

Outcome Outlines::best() const {
  if (!best_)
    return Infeasible{misfit_.empty() ? "no chain of stages has room for a micro-batch" : misfit_};
  Plan plan = *best_;
  for (Stage& stage : plan.pipelines[0].stages) shorten(stage, synthesis_.stages().names());
  return plan;
}

}  // namespace medley
