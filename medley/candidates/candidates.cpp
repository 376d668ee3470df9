#include "medley/candidates/candidates.h"

#include <cmath>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/lower/lower.h"
#include "medley/sharding/parts.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/shorten.h"

namespace medley {
namespace {

constexpr int kMostRepairs = 8;          // of a plan that does not fit
constexpr double kClearlySlower = 1.02;  // of what is timed
constexpr double kTooSlow = 1.1;         // by the timer, which may say more than the simulator
constexpr size_t kTriedAtOnce = 2;
constexpr int kFew = 2;       // considered of which none beats what is known
constexpr int64_t kFull = 8;  // micro-batches simulated beyond three times those in flight
// As many, and more, are not; of several pipelines, which take longer.
constexpr int64_t kManyTimes = 4, kManyTimesOfSeveral = 2;

// The first micro-batches of each pipeline of a plan.
Plan shortened(Plan plan, int64_t microbatches) {
  plan.global_batch = 0;
  for (Pipeline& pipeline : plan.pipelines) {
    pipeline.microbatches.resize(at(microbatches));
    for (const Microbatch& microbatch : pipeline.microbatches) plan.global_batch += microbatch.rows;
  }
  return plan;
}

// Of the first pipeline, and of all others where they are alike.
int64_t num_microbatches(const Plan& plan) {
  return std::ssize(plan.pipelines.front().microbatches);
}

Bytes needed(const StageOption& option, int in_flight) {
  return option.persistent + option.transient + option.saved * in_flight;
}

}  // namespace

CandidateSet::CandidateSet(const Request& request,
                           const std::vector<DevicePool>& pools,
                           StageSynthesis& synthesis)
    : request_(request),
      pools_(pools),
      synthesis_(synthesis),
      links_(links_of(pools, request.costs->topology())) {
  for (const DevicePool& pool : pools) {
    const Device& first = request.cluster.devices[at(pool.devices[0])];
    const int devices = static_cast<int>(pool.devices.size());
    pipeline_pools_.push_back({request.cluster.pools[at(first.pool)].name,
                               devices,
                               mesh_sizes(pool),
                               {static_cast<int64_t>(least_memory(request.cluster, pool.devices))},
                               devices <= pool.per_node});
    if (!pool.alike)
      alike_nodes_.emplace(static_cast<int>(&pool - pools.data()),
                           AlikeNodes(request.cluster, request.costs->topology(), pool.devices));
  }
  find_tied();
}

void CandidateSet::find_tied() {
  const Graph& graph = request_.analysis->graph;
  const std::vector<Layer>& layers = synthesis_.layers().layers;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), 1);
  const std::map<std::string, ValueId> gradients = gradients_of(graph);
  std::set<ValueId> trained;
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kParameter && gradients.contains(input.name))
      trained.insert(input.value);
  std::map<ValueId, std::set<int>> readers;
  for (size_t l = 0; l < layers.size(); ++l)
    for (const ValueId parameter : layers[l].parameters)
      if (trained.contains(parameter)) readers[parameter].insert(static_cast<int>(l));
  for (auto& [parameter, read] : readers)
    if (read.size() > 1)
      tied_.push_back({{num_bytes(type_of(graph, parameter), symbols)}, std::move(read)});
  for (const Layer& layer : layers) {
    Bytes& sum = gradients_.emplace_back();
    for (const ValueId parameter : layer.parameters)
      if (trained.contains(parameter)) sum += Bytes{num_bytes(type_of(graph, parameter), symbols)};
  }
}

int64_t CandidateSet::rows_of_microbatch(const PipelineCandidate& pipeline) const {
  return (rows_of(pipeline) + pipeline.microbatches - 1) / pipeline.microbatches;
}

int64_t CandidateSet::rows(int64_t microbatches) const {
  return (request_.global_batch + microbatches - 1) / microbatches;
}

int64_t CandidateSet::rows_of(const PipelineCandidate& pipeline) const {
  return pipeline.rows > 0 ? pipeline.rows : request_.global_batch;
}

std::vector<CutBytes> CandidateSet::cuts(int64_t rows) const {
  const Graph& graph = request_.analysis->graph;
  const std::vector<Layer>& layers = synthesis_.layers().layers;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), rows);
  std::vector<CutBytes> cuts;
  for (size_t l = 0; l + 1 < layers.size(); ++l)
    cuts.push_back({{medley::evaluate(total_bytes(graph, layers[l].up), symbols)},
                    {medley::evaluate(total_bytes(graph, layers[l].down), symbols)}});
  return cuts;
}

Bytes CandidateSet::shared() const {
  const int last = static_cast<int>(synthesis_.layers().layers.size()) - 1;
  Bytes sum;
  for (const Tied& tied : tied_)
    if (tied.layers.contains(0) && tied.layers.contains(last)) sum += tied.bytes;
  return sum;
}

StageMesh CandidateSet::mesh(const StageRange& range) const {
  const DevicePool& pool = pools_[at(range.pool)];
  StageMesh mesh{{pool.devices.begin(), pool.devices.begin() + range.devices}};
  if (pool.speeds.empty()) return mesh;
  std::map<int, double> speeds;  // of a device; as lay_out() puts them
  for (size_t d = 0; d < mesh.devices.size(); ++d) speeds[mesh.devices[d]] = pool.speeds[d];
  mesh.devices.clear();
  for (const auto& [device, speed] : speeds) {
    mesh.devices.push_back(device);
    mesh.speeds.push_back(speed);
  }
  return mesh;
}

// Where the pipelines of a candidate lie: one after the other, so that neighbours are near, or by
// the first layers of their stages.
std::vector<std::vector<std::vector<int>>> CandidateSet::devices_of(
    const PlanCandidate& candidate) const {
  std::vector<std::pair<size_t, size_t>> order;  // pipeline, stage
  for (size_t p = 0; p < candidate.pipelines.size(); ++p)
    for (size_t s = 0; s < candidate.pipelines[p].stages.size(); ++s) order.emplace_back(p, s);
  const auto range = [&](const std::pair<size_t, size_t>& place) -> const StageRange& {
    return candidate.pipelines[place.first].stages[place.second];
  };
  if (candidate.together == Together::kSameLayers)
    std::ranges::stable_sort(order, {}, [&](const auto& place) { return range(place).begin; });
  std::vector<StageRange> ranges;
  for (const auto& place : order) ranges.push_back(range(place));
  std::vector<std::vector<int>> devices = lay_out(pools_, ranges);
  std::vector<std::vector<std::vector<int>>> result;
  for (const PipelineCandidate& pipeline : candidate.pipelines)
    result.emplace_back(pipeline.stages.size());
  for (size_t i = 0; i < order.size(); ++i)
    result[order[i].first][order[i].second] = std::move(devices[i]);
  return result;
}

std::optional<PlanCandidate> CandidateSet::placed_otherwise(PlanCandidate candidate) const {
  const std::vector<std::vector<std::vector<int>>> before = devices_of(candidate);
  candidate.together =
      candidate.together == Together::kNeighbours ? Together::kSameLayers : Together::kNeighbours;
  if (devices_of(candidate) == before) return std::nullopt;
  return candidate;
}

StageQuery CandidateSet::query(const PipelineCandidate& pipeline, size_t stage) const {
  const StageRange& range = pipeline.stages[stage];
  const auto alike = alike_nodes_.find(range.pool);
  StageMesh own = mesh(range);
  if (alike != alike_nodes_.end())
    own.devices = alike->second.first_alike(lay_out(pools_, pipeline.stages)[stage]);
  return {range.begin, range.end, own, pipeline.configs[stage]};
}

const std::optional<StageSolution>& CandidateSet::solution(const PipelineCandidate& pipeline,
                                                           size_t stage) {
  return synthesis_.whole(query(pipeline, stage));
}

void CandidateSet::solve(const std::vector<PlanCandidate>& candidates) {
  std::vector<StageQuery> queries;
  for (const PlanCandidate& candidate : candidates)
    for (const PipelineCandidate& pipeline : candidate.pipelines)
      for (size_t s = 0; s < pipeline.stages.size(); ++s) queries.push_back(query(pipeline, s));
  synthesis_.solve_wholes(queries);
}

std::optional<PipelinePlan> CandidateSet::stages(const PipelineCandidate& pipeline,
                                                 const std::vector<std::vector<int>>& devices,
                                                 const std::vector<ExtraBytes>& extra,
                                                 bool is_alone) {
  PipelinePlan plan;
  plan.microbatches = static_cast<int>(pipeline.microbatches);
  const std::vector<CutBytes> cuts = this->cuts(pipeline);
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const std::optional<StageSolution>& solved = solution(pipeline, s);
    if (!solved) return std::nullopt;
    PipelineStage stage{pipeline.stages[s], solved->option, 1, plan.microbatches};
    stage.room = room(stage.option, stage.range, plan.microbatches, is_alone);
    if (is_whole_ || (!extra.empty() && extra[s].is_whole)) stage.option.weights = {};
    if (!extra.empty() && extra[s].bytes > Bytes{}) {
      // Part of it may grow with what is in flight.
      const int half = std::min(stage.room, extra[s].in_flight / 2);
      stage.room = std::max(
          half, room(stage.option, stage.range, plan.microbatches, is_alone, extra[s].bytes));
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
  return plan;
}

std::optional<std::vector<PipelinePlan>> CandidateSet::stages(const PlanCandidate& candidate,
                                                              const Extra& extra) {
  const std::vector<std::vector<std::vector<int>>> devices = devices_of(candidate);
  std::vector<PipelinePlan> plans;
  for (size_t p = 0; p < candidate.pipelines.size(); ++p) {
    const PipelineCandidate& pipeline = candidate.pipelines[p];
    std::optional<PipelinePlan> plan = stages(pipeline,
                                              devices[p],
                                              extra.empty() ? std::vector<ExtraBytes>{} : extra[p],
                                              candidate.pipelines.size() == 1);
    const std::optional<Nanoseconds> exchange = this->exchange(pipeline.stages);
    if (!plan || !exchange) return std::nullopt;
    plan->exchange = *exchange;
    plans.push_back(std::move(*plan));
  }
  return plans;
}

std::optional<std::vector<PipelinePlan>> CandidateSet::wholes(const PlanCandidate& candidate,
                                                              const Extra& extra) {
  std::optional<std::vector<PipelinePlan>> plans = stages(candidate, extra);
  if (!plans) return plans;
  for (const PipelinePlan& plan : *plans)
    if (std::ranges::min(plan.stages, {}, &PipelineStage::room).room < 1) return std::nullopt;
  return plans;
}

void CandidateSet::add_recomputing(std::vector<PlanCandidate> candidates) {
  for (const std::string_view how : {kRecompute[0], kRecompute[2], kRecompute[1]}) {
    if (how != kRecompute[0])
      std::erase_if(candidates,
                    [&](PlanCandidate& candidate) { return !recompute_more(candidate, how); });
    add(candidates);
  }
}

void CandidateSet::drop_slower(std::vector<PlanCandidate>& candidates, Nanoseconds step) {
  std::vector<StageQuery> queries;
  for (const PlanCandidate& candidate : candidates)
    for (const PipelineCandidate& pipeline : candidate.pipelines)
      for (size_t s = 0; s < pipeline.stages.size(); ++s) queries.push_back(query(pipeline, s));
  const std::vector<Nanoseconds> sums = synthesis_.sums_of_layers(queries);
  size_t next = 0;
  std::erase_if(candidates, [&](const PlanCandidate& candidate) {
    bool slower = false;
    for (const PipelineCandidate& pipeline : candidate.pipelines)
      for (size_t s = 0; s < pipeline.stages.size(); ++s) slower |= sums[next++] > step;
    return slower;
  });
}

int CandidateSet::room(const StageOption& option,
                       const StageRange& range,
                       int most,
                       bool is_alone,
                       Bytes beside) const {
  const Bytes free = pipeline_pools_[at(range.pool)].memory - needed(option, 0);
  if (!is_alone && free < option.saved + held_while_summed(gradients_, range)) return 0;
  if (free < beside) return 0;
  if (option.saved <= Bytes{}) return most;
  return static_cast<int>(std::min<int64_t>((free - beside).value / option.saved.value, most));
}

std::vector<Nanoseconds> CandidateSet::layer_times(const PipelineCandidate& pipeline,
                                                   size_t stage) {
  std::vector<StageQuery> queries(layers().layers.size(), query(pipeline, stage));
  int next = 0;
  for (StageQuery& each : queries) {
    each.begin = next++;
    each.end = next;
  }
  return synthesis_.sums_of_layers(queries);
}

size_t CandidateSet::slowest_stage(const PipelineCandidate& pipeline) {
  size_t slowest = 0;
  Nanoseconds most;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const StageOption& option = solution(pipeline, s)->option;
    if (option.forward + option.backward <= most) continue;
    most = option.forward + option.backward;
    slowest = s;
  }
  return slowest;
}

Pipeline CandidateSet::to_pipeline(const PipelineCandidate& candidate,
                                   const std::vector<std::vector<int>>& devices,
                                   const PipelineTurns& turns) {
  const auto shares = [&](size_t s) {  // over the devices of the first axis
    return shares_of_rows(mesh(candidate.stages[s]), solution(candidate, s)->stage.mesh.shape[0]);
  };
  Pipeline pipeline;
  pipeline.microbatches =
      cut_into_microbatches(apportion(rows_of(candidate), shares(0)), candidate.microbatches);
  find_defaults(candidate);
  for (size_t s = 0; s < candidate.stages.size(); ++s) {
    const StageSolution& solved = *solution(candidate, s);
    Stage stage = solved.stage;
    if (defaults_suffice_.at(query(candidate, s)))
      for (Choices* said : {&stage.states, &stage.batch, &stage.ops, &stage.updates}) said->clear();
    stage.mesh.devices = names_of(request_.cluster, devices[s]);
    if (s == 0 && !solved.by_rows)
      for (Microbatch& microbatch : pipeline.microbatches) microbatch.lengths.clear();
    if (s > 0) stage.first = name_of_first(candidate.stages[s].begin);
    if (s > 0 && solved.by_rows) stage.rows = shares(s);
    pipeline.stages.push_back(std::move(stage));
  }
  if (candidate.stages.size() > 1) {
    pipeline.schedule = "h1f1b";
    pipeline.in_flight.assign(turns.in_flight.begin(), turns.in_flight.end());
    if (std::ranges::max(turns.late_weights) > 0)
      pipeline.late_weights.assign(turns.late_weights.begin(), turns.late_weights.end());
  }
  return pipeline;
}

Plan CandidateSet::to_plan(const PlanCandidate& candidate,
                           const std::vector<PipelineTurns>& turns) {
  Plan plan = empty_plan(request_);
  const std::vector<std::vector<std::vector<int>>> devices = devices_of(candidate);
  for (size_t p = 0; p < candidate.pipelines.size(); ++p)
    plan.pipelines.push_back(to_pipeline(candidate.pipelines[p], devices[p], turns[p]));
  return plan;
}

// Nothing need be said of a stage where saying nothing is as good.
void CandidateSet::find_defaults(const PipelineCandidate& pipeline) {
  std::vector<std::pair<const StageQuery, bool>*> missing;
  for (size_t s = 0; s < pipeline.stages.size(); ++s)
    if (const auto [found, is_new] = defaults_suffice_.try_emplace(query(pipeline, s)); is_new)
      missing.push_back(&*found);
  for_each_in_parallel(missing.size(), [&](size_t i) {
    missing[i]->second = synthesis_.defaults_suffice(missing[i]->first);
  });
}

std::string CandidateSet::name_of_first(int layer) const {
  const int32_t position = synthesis_.layers().layers[at(layer)].begin;
  const PreparedStages& stages = synthesis_.stages();
  return stages.names()[at(stages.positions().sequence[at(position)])];
}

std::optional<CandidateSet::Trial> CandidateSet::trial(const PlanCandidate& candidate,
                                                       const Extra& extra) {
  std::optional<std::vector<PipelinePlan>> plans = wholes(candidate, extra);
  if (!plans) return std::nullopt;
  std::vector<PipelineTurns> turns;
  for (const PipelinePlan& plan : *plans) turns.push_back(turns_of(plan));
  Plan plan = to_plan(candidate, turns);
  return Trial{std::move(*plans), std::move(turns), std::move(plan), {}, {}};
}

// Until it is full, as long again, and until it is empty; all, if these are not many times as many,
// or pipelines differ.
void CandidateSet::lower(Trial& trial) const {
  const std::vector<PipelinePlan>& all = trial.pipelines;
  const bool alike = std::ranges::count(all, all[0]) == std::ssize(all);
  const int64_t count = num_microbatches(trial.plan);
  const int64_t few = 3 * trial.turns[0].in_flight[0] + kFull;
  const int64_t many = few * (all.size() > 1 ? kManyTimesOfSeveral : kManyTimes);
  const Plan some = alike && count > many ? shortened(trial.plan, few) : trial.plan;
  trial.program = medley::lower(synthesis_.stages(), some, request_.cluster, {.hash_plan = false});
}

// Of so many micro-batches, of which the program has the first. What one more takes is read off the
// backward calls of the first stage while the pipeline is full.
void CandidateSet::simulate(Trial& trial) const {
  trial.step = simulated_step(trial);
  if (request_.besides) *trial.step += request_.besides(trial.program, *trial.step);
}

Nanoseconds CandidateSet::simulated_step(const Trial& trial) const {
  const Simulation simulated = medley::simulate(trial.program, *request_.costs);
  const std::vector<LoweredStage>& stages = trial.program.stages;
  const int64_t count = num_microbatches(trial.plan);
  const auto some = static_cast<int64_t>(stages[0].tables.size());
  if (some == count) return simulated.step;
  const int64_t first = trial.turns[0].in_flight[0], last = some - first - 1;
  Nanoseconds full;
  for (const SimulatedDevice& device : simulated.devices) {
    const int stage = device.stage;
    if (stage > 0 && stages[at(stage)].pipeline == stages[at(stage - 1)].pipeline) continue;
    std::map<FunctionKind, std::vector<Nanoseconds>> by_kind;  // [microbatch]
    for (const SimulatedCall& each : device.calls) by_kind[each.call.function].push_back(each.ends);
    // Where nothing is trained there is no backward call.
    const auto backward = by_kind.find(FunctionKind::kBackward);
    const std::vector<Nanoseconds>& ends =
        backward == by_kind.end() ? by_kind.at(FunctionKind::kForward) : backward->second;
    full = std::max(full, ends[at(last)] - ends[at(first)]);
  }
  return simulated.step + Nanoseconds{full.value * (count - some) / (last - first)};
}

void CandidateSet::evaluate(PlanCandidate candidate, std::optional<Trial> trial) {
  const auto why = why_left_out(request_, [&] { repair(std::move(candidate), std::move(trial)); });
  if (why && misfit_.empty()) misfit_ = *why;
}

void CandidateSet::repair(PlanCandidate candidate, std::optional<Trial> trial) {
  Extra extra;
  for (const PipelineCandidate& pipeline : candidate.pipelines)
    extra.emplace_back(pipeline.stages.size());
  for (int repair = 0; repair < kMostRepairs; ++repair) {
    if (!trial) trial = this->trial(candidate, extra);
    if (!trial) return;
    if (trial->program.stages.empty()) lower(*trial);
    // Whether it fits need not be known of one that is slower than one that does, and how long it
    // takes need not be known of the first before it fits.
    if (best_ && !trial->step) simulate(*trial);
    if (best_ && *trial->step >= best_step_) return;
    const std::vector<Shortage> shortages = find_shortages(*trial);
    if (shortages.empty()) {
      if (!trial->step) simulate(*trial);
      best_ = std::move(trial->plan);
      best_candidate_ = candidate;
      best_step_ = *trial->step;
      return;
    }
    if (misfit_.empty()) misfit_ = explain(shortages[0], *trial);
    bool was_late = false;
    for (const Shortage& each : shortages) {
      if (trial->turns[each.pipeline].late_weights[each.stage] == 0) continue;
      extra[each.pipeline][each.stage].is_whole = was_late = true;
    }
    if (was_late) {
      trial.reset();
      --repair;
      continue;
    }
    // Pipelines that are alike lack the same.
    const auto [p, s, device, missing] = shortages[0];
    const PipelineStage& stage = trial->pipelines[p].stages[s];
    const int in_flight = trial->turns[p].in_flight[s];
    const Bytes found = pipeline_pools_[at(stage.range.pool)].memory +
                        Bytes{static_cast<int64_t>(std::ceil(missing))};
    const PipelineCandidate& lacks = candidate.pipelines[p];
    // With fewer in flight it may lack no less.
    const bool may_help = in_flight >= extra[p][s].in_flight || missing < extra[p][s].missing;
    for (size_t q = 0; q < candidate.pipelines.size(); ++q)
      if (candidate.pipelines[q] == lacks)
        extra[q][s] = {found - needed(stage.option, in_flight), in_flight, true, missing};
    std::optional<PlanCandidate> other = with_less_memory(candidate, p, s, extra, may_help);
    if (!other) return;
    candidate = std::move(*other);
    trial.reset();
  }
}

// Whether by the timer no step of it is shorter than what is known.
bool CandidateSet::is_too_slow(Nanoseconds time) const {
  return request_.faster_than && time / *request_.faster_than > kTooSlow;
}

// Lowers and simulates the next ones that take hardly longer than the fastest, on all cores.
void CandidateSet::try_next(std::vector<std::optional<Trial>>& trials) {
  const size_t begin = trials.size();
  const size_t end = std::min(timed_.size(), begin + kTriedAtOnce);
  for (size_t i = begin; i < end; ++i) {
    const bool is_slower = timed_[i].time / timed_[0].time > kClearlySlower;
    if (request_.faster_than ? is_too_slow(timed_[i].time) : is_slower) break;
    std::optional<Trial>& made = trials.emplace_back();
    why_left_out(request_, [&] { made = trial(timed_[i].candidate, {}); });
  }
  // evaluate() says why one is left out.
  for_each_in_parallel(trials.size() - begin, [&](size_t i) {
    std::optional<Trial>& trial = trials[begin + i];
    if (!trial) return;
    const auto why = why_left_out(request_, [&] {
      lower(*trial);
      simulate(*trial);
    });
    if (why) trial.reset();
  });
}

void CandidateSet::choose(int most, const std::function<void(int)>& starting) {
  const auto is_another_time = [&](size_t i) {
    return i == 0 || timed_[i].time != timed_[i - 1].time;
  };
  if (starting) starting(0);
  std::vector<std::optional<Trial>> trials;  // of the first ones
  int times = 0;                             // considered
  for (size_t i = 0; i < timed_.size(); ++i) {
    const auto& [time, candidate] = timed_[i];
    if (is_another_time(i)) {
      if (is_too_slow(time)) break;
      if (best_ && times >= most) break;
      // Where several are slower than the timer says, so are the next.
      if (best_ && times >= kFew && is_slower_than_known(best_step_)) break;
      // The timer knows less of what waits for what: it rarely says more than the simulator.
      if (best_ && time >= best_step_) break;
      if (starting && times > 0) starting(times);
      ++times;
    }
    if (i == trials.size()) try_next(trials);
    evaluate(candidate, i < trials.size() ? std::move(trials[i]) : std::nullopt);
  }
  if (!best_) return;
  const std::optional<PlanCandidate> other = placed_otherwise(best_candidate_);
  if (other && !loses_by_ports(*other)) evaluate(*other);
}

void CandidateSet::join_axes() {
  if (!best_) return;
  PlanCandidate joined = best_candidate_;
  struct Way {
    size_t pipeline = 0, stage = 0;
    StageConfig config;
  };
  std::vector<Way> ways;
  std::vector<PlanCandidate> candidates;
  for (size_t p = 0; p < joined.pipelines.size(); ++p) {
    const PipelineCandidate& pipeline = joined.pipelines[p];
    for (size_t s = 0; s < pipeline.stages.size(); ++s)
      if (const auto config = synthesis_.on_nodes(query(pipeline, s).mesh, pipeline.configs[s])) {
        ways.push_back({p, s, *config});
        candidates.push_back({{pipeline}});
        candidates.back().pipelines.front().configs[s] = *config;
      }
  }
  solve(candidates);
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto& [p, s, config] = ways[i];
    PipelineCandidate& pipeline = joined.pipelines[p];
    const auto &now = solution(pipeline, s), &other = solution(candidates[i].pipelines.front(), s);
    const auto step = [&](const StageOption& option) {
      return (option.forward + option.backward) * pipeline.microbatches + option.update;
    };
    if (other && step(other->option) < step(now->option)) pipeline.configs[s] = config;
  }
  if (joined != best_candidate_) evaluate(joined);
}

Outcome CandidateSet::best() const {
  if (!best_ && (timed_.empty() ? dropped_ : is_too_slow(timed_[0].time)))
    return Infeasible{"none is predicted to be faster than what is known"};
  if (!best_ && !misfit_.empty()) return Infeasible{misfit_};
  if (!best_ && !synthesis_.failure().empty()) return Infeasible{synthesis_.failure()};
  if (!best_) return Infeasible{"no chain of stages has room for a micro-batch"};
  Plan plan = *best_;
  std::vector<Stage*> stages;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) stages.push_back(&stage);
  for_each_in_parallel(stages.size(),
                       [&](size_t s) { shorten(*stages[s], synthesis_.stages().names()); });
  return plan;
}

}  // namespace medley
