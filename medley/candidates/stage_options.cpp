#include "medley/candidates/stage_options.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/memory/memory.h"
#include "medley/program/calls.h"
#include "medley/sharding/parts.h"
#include "medley/sim/stage_times.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {
namespace {

// In ticks per byte: fastest, less memory, least memory.
constexpr std::array kBytePrices{0.0, 1.0, 1e3};
// A mesh with memory for the whole model and this many in flight needs no other options.
constexpr int64_t kPlenty = 16;
constexpr int64_t kMicrobatches = 3;  // a first, a usual and a last one, per stage

constexpr std::string_view kKept = kRecompute[0], kAll = kRecompute[1], kBlocks = kRecompute[2];

StageConfig at_price(StageConfig config, size_t price, std::string_view recompute = kKept) {
  config.byte_price = kBytePrices[price];
  config.recompute = recompute;
  return config;
}

// Returns the id of an option that keeps all; recomputing ones follow. `inner`: power of two.
int id_of(int inner, size_t price) {
  const auto grid = at(std::countr_zero(static_cast<unsigned>(inner)));
  return static_cast<int>((grid * kBytePrices.size() + price) * kRecompute.size());
}

// A price has no effect on a single device.
size_t num_prices(const StageMesh& mesh) {
  return mesh.devices.size() == 1 ? 1 : kBytePrices.size();
}

StageConfig on_two_axes(StageConfig config, int inner, StageStyle style = StageStyle::kTensor) {
  config.inner = inner;
  config.style = style;
  return config;
}

// Returns whether rows are divided between nodes and other dims inside them.
bool is_product(const StageConfig& config) {
  return config.inner > 1 && config.style == StageStyle::kTensor;
}

Plan outline(const Request& request, const StageMesh& mesh, const StageConfig& config) {
  Plan plan;
  plan.global_batch = kMicrobatches * config.rows;
  Stage stage;
  const auto count = static_cast<int64_t>(mesh.devices.size()) / config.inner;
  stage.mesh = {{"data"}, {count}, {}};
  if (config.inner > 1) {
    stage.mesh.axes.emplace_back("model");
    stage.mesh.shape.push_back(config.inner);
  }
  stage.mesh.devices = names_of(request.cluster, mesh.devices);
  Microbatch microbatch{config.rows, {}};
  if (config.style == StageStyle::kData || config.inner > 1 ||
      (config.style == StageStyle::kBest && config.rows >= count))
    microbatch.lengths = apportion(config.rows, shares_of_rows(mesh, count));
  Pipeline pipeline;
  pipeline.microbatches.assign(at(kMicrobatches), microbatch);
  pipeline.stages = {std::move(stage)};
  plan.pipelines = {std::move(pipeline)};
  return plan;
}

// Returns a 1-D stage as the second axis of another mesh; rows are divided on the first.
Stage on_second_axis(const Stage& inner, Mesh mesh) {
  Stage stage;
  stage.mesh = std::move(mesh);
  const auto joined = [](const Choices& texts, const char* first) {
    Choices result;
    for (const auto& [name, text] : texts) result[name] = first + (" x " + text);
    return result;
  };
  stage.placements = joined(inner.placements, "R");
  stage.updates = joined(inner.updates, "R");
  stage.ops = joined(inner.ops, "*");
  return stage;
}

// Returns the times of the slowest device type, by its first device, which has the longest shards.
// Bytes are scaled from the device's memory to that of the smallest one.
StageOption price(const LoweredStage& stage, const CostModel& costs, int64_t microbatches) {
  std::map<std::string, FunctionTimes> kinds;
  const double least = least_memory(costs.cluster(), stage.devices);
  StageOption option;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    const auto [times, is_new] = kinds.try_emplace(costs.cluster().kind(stage.devices[d]).name);
    if (!is_new) continue;
    times->second = time_functions(stage, costs, static_cast<int>(d));
    option.forward = std::max(option.forward, times->second.forward);
    option.backward = std::max(option.backward, times->second.backward);
    option.weights = std::max(option.weights, times->second.weights);
    option.update =
        std::max(option.update, times->second.prologue * microbatches + times->second.update);
    const MemoryUse use = memory_use(stage, static_cast<int>(d));
    const int64_t persistent = use.persistent + use.at_peak[at(MemoryPart::kGradients)];
    const double part = least / costs.cluster().kind(stage.devices[d]).memory_bytes;
    const auto raise = [&](Bytes& most, int64_t bytes) {
      const double scaled = std::ceil(static_cast<double>(bytes) * part);
      most = std::max(most, Bytes{static_cast<int64_t>(scaled)});
    };
    raise(option.persistent, persistent);
    raise(option.saved, use.saved[0]);
    raise(option.transient, use.peak - persistent - use.saved[0]);
  }
  return option;
}

bool is_worse(const StageOption& a, const StageOption& b) {
  return a.forward + a.backward >= b.forward + b.backward && a.update >= b.update &&
         a.persistent >= b.persistent && a.saved >= b.saved && a.transient >= b.transient;
}

}  // namespace

std::vector<double> shares_of_rows(const StageMesh& mesh, int64_t places) {
  std::vector<double> shares(at(places), mesh.speeds.empty() ? 1.0 : 0.0);
  const size_t each = mesh.devices.size() / at(places);
  for (size_t d = 0; d < mesh.speeds.size(); ++d) shares[d / each] += mesh.speeds[d];
  return shares;
}

StageSynthesis::StageSynthesis(const Request& request, const LayerOptions& options)
    : request_(request),
      stages_(*request.cache.analysis),
      layers_(find_layers(request.cache.analysis->graph, stages_.positions(), options)) {
  for (const Layer& layer : layers_.layers)
    like_.push_back(
        static_cast<int>(std::ranges::find(layers_.layers, layer.structure, &Layer::structure) -
                         layers_.layers.begin()));
}

StageSynthesis::RangeKey StageSynthesis::range_key(const StageQuery& query) {
  return {query.begin, query.end, query.config.recompute, query.config.in_flight};
}

StageSynthesis::Key StageSynthesis::plain(Key key) {
  key.query.config.recompute = kKept;
  key.query.config.in_flight = 1;
  return key;
}

Completed StageSynthesis::complete(const RangeKey& key) {
  const int last = static_cast<int>(layers_.layers.size());
  std::vector<int> cuts;
  if (key.begin > 0) cuts.push_back(key.begin);
  if (key.end < last) cuts.push_back(key.end);
  const Partition parts = partition(
      request_.cache.analysis->graph, stages_.positions(), cuts_at(layers_, cuts), stages_.names());
  return stages_.stage(parts, key.begin > 0 ? 1 : 0, std::string(key.recompute), key.in_flight);
}

StageSynthesis::Key StageSynthesis::inner_key(Key key) {
  const auto outer = static_cast<int64_t>(key.query.mesh.devices.size()) / key.query.config.inner;
  key.query.mesh = {
      {key.query.mesh.devices.begin(), key.query.mesh.devices.begin() + key.query.config.inner}};
  key.query.config.rows = (key.query.config.rows + outer - 1) / outer;
  key.query.config.style = StageStyle::kTensor;
  key.query.config.inner = 1;
  return key;
}

// Solves decisions first, 1-D before 2-D, then prices recomputed ones.
void StageSynthesis::solve(const std::vector<Key>& keys) {
  std::vector<Key> inner, decided, again;
  for (const Key& key : keys) {
    decided.push_back(plain(key));
    if (is_product(key.query.config)) inner.push_back(inner_key(plain(key)));
    if (key.query.config.recompute != kKept) again.push_back(key);
  }
  solve_missing(std::move(inner));
  solve_missing(std::move(decided));
  solve_missing(std::move(again));
}

// Prepares shared graphs first.
void StageSynthesis::solve_missing(std::vector<Key> keys) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::erase_if(keys, [&](const Key& key) { return solved_.contains(key); });
  std::vector<std::pair<RangeKey, Completed*>> missing;
  for (const Key& key : keys) {
    const auto [found, is_new] = completed_.try_emplace(range_key(key.query));
    if (is_new) missing.emplace_back(found->first, &found->second);
  }
  std::vector<std::optional<std::string>> reasons(missing.size());
  for_each_in_parallel(missing.size(), [&](size_t i) {
    reasons[i] = why_left_out(request_, [&] { *missing[i].second = complete(missing[i].first); });
  });
  note(reasons);
  // Keys that differ only in memory price, the lowest first.
  std::map<Key, std::vector<std::pair<const Key, std::optional<StageSolution>>*>> distinct;
  std::vector<std::pair<std::optional<StageSolution>*, Isomorphic>> others;
  for (const Key& key : keys) {
    if (!completed_.at(range_key(key.query)).prepared) {
      solved_[key] = std::nullopt;
      continue;
    }
    std::optional<Isomorphic> like = find_isomorphic(key);
    auto& fresh = *solved_.try_emplace(key).first;
    Key lowest = key;
    lowest.query.config.byte_price = 0;
    if (like)
      others.emplace_back(&fresh.second, std::move(*like));
    else
      distinct[lowest].push_back(&fresh);
  }
  std::vector<decltype(distinct)::mapped_type> groups;
  for (auto& [lowest, group] : distinct) {
    num_syntheses_ += static_cast<int>(group.size());
    groups.push_back(std::move(group));
  }
  reasons.assign(groups.size(), {});
  for_each_in_parallel(groups.size(), [&](size_t i) {
    std::optional<OpCatalogue> catalogue;
    for (auto* one : groups[i]) {
      auto why = why_left_out(request_, [&] { one->second = synthesise(one->first, catalogue); });
      if (!why) continue;
      catalogue.reset();
      if (!reasons[i]) reasons[i] = std::move(why);
    }
  });
  note(reasons);
  for (const auto& [solution, like] : others) {
    *solution = like.solution;
    if (*solution) (*solution)->stage = renamed(like.solution->stage, like.names);
  }
}

void StageSynthesis::note(const std::vector<std::optional<std::string>>& reasons) {
  for (const std::optional<std::string>& why : reasons)
    if (why && failure_.empty()) failure_ = *why;
}

// Finds an identical range with the same configuration, solved or in progress.
std::optional<StageSynthesis::Isomorphic> StageSynthesis::find_isomorphic(const Key& key) const {
  if (key.layer) return std::nullopt;
  const auto structures = [&](const StageQuery& query) {
    return std::span(like_).subspan(at(query.begin), at(query.end - query.begin));
  };
  for (const auto& [other, solution] : solved_) {
    if (!completed_.at(range_key(other.query)).prepared) continue;
    StageConfig config = other.query.config;
    config.in_flight = key.query.config.in_flight;  // only the computation depends on it
    if (other.layer || other.query.mesh != key.query.mesh || config != key.query.config ||
        !std::ranges::equal(structures(other.query), structures(key.query)))
      continue;
    std::optional<Renaming> names = renaming(*completed_.at(range_key(other.query)).prepared,
                                             *completed_.at(range_key(key.query)).prepared);
    if (names) return Isomorphic{solution, std::move(*names)};
  }
  return std::nullopt;
}

StageOption StageSynthesis::price_alone(const StageQuery& query, const Plan& plan) const {
  StageOption option = price(lower_alone(completed_.at(range_key(query)), plan, request_.cluster),
                             *request_.costs,
                             query.config.microbatches);
  // Values recomputed for a deferred weight gradient would be stored until then.
  if (query.config.recompute != kKept) option.weights = {};
  return option;
}

// Returns nullopt without a solution.
std::optional<Stage> StageSynthesis::decisions(const Key& key,
                                               const Plan& outline,
                                               std::optional<OpCatalogue>& catalogue) const {
  const StageQuery& query = key.query;
  const Pipeline& pipeline = only_pipeline(outline);
  if (query.config.recompute != kKept) {
    const std::optional<StageSolution>& kept = solved_.at(plain(key));
    if (!kept) return std::nullopt;
    Stage stage = kept->stage;
    stage.recompute = query.config.recompute;
    return stage;
  }
  if (query.mesh.devices.size() == 1 || query.config.style == StageStyle::kData)
    return pipeline.stages[0];
  if (is_product(query.config)) {
    const std::optional<StageSolution>& inner = solved_.at(inner_key(key));
    if (!inner) return std::nullopt;
    return on_second_axis(inner->stage, pipeline.stages[0].mesh);
  }
  const Completed& own = completed_.at(range_key(query));
  if (!catalogue)
    catalogue.emplace(own.prepared->graph,
                      *own.factors,
                      SpmdMesh(*request_.costs,
                               query.mesh.devices,
                               parts_of(outline, pipeline),
                               pipeline.microbatches[0],
                               pipeline.stages[0].mesh.shape),
                      SpmdPricing{});
  SpmdOptions options;
  options.microbatches = query.config.microbatches;
  options.byte_price = query.config.byte_price;
  options.sends_as_received = key.layer;
  const SpmdProblem problem(*own.prepared, *catalogue, options);
  const std::optional<PbqpSolution> found = medley::solve(problem.pbqp(), search_options());
  if (!found) return std::nullopt;
  return problem.stage(found->choices, pipeline.stages[0].mesh);
}

// Returns the solution at a lower memory price, if the decisions are equal.
const StageSolution* StageSynthesis::of_lower_price(Key key, const Stage& decided) const {
  const double own = key.query.config.byte_price;
  for (const double price : kBytePrices) {
    key.query.config.byte_price = price;
    const auto found = solved_.find(key);
    if (price < own && found != solved_.end() && found->second && found->second->stage == decided)
      return &*found->second;
  }
  return nullptr;
}

std::optional<StageSolution> StageSynthesis::synthesise(
    const Key& key, std::optional<OpCatalogue>& catalogue) const {
  const StageQuery& query = key.query;
  Plan plan = outline(request_, query.mesh, query.config);
  Pipeline& pipeline = only_pipeline(plan);
  std::optional<Stage> decided = decisions(key, plan, catalogue);
  if (!decided) return std::nullopt;
  if (const StageSolution* same = of_lower_price(key, *decided)) return *same;
  pipeline.stages[0] = std::move(*decided);
  StageSolution solution;
  solution.option = price_alone(query, plan);
  solution.by_rows = !pipeline.microbatches[0].lengths.empty();
  solution.stage = std::move(pipeline.stages[0]);
  return solution;
}

bool StageSynthesis::defaults_suffice(const StageQuery& query) const {
  const StageSolution& said = *solved_.at({query, false});
  if (!said.by_rows || said.stage.ops.empty()) return false;
  Plan plan = outline(request_, query.mesh, query.config);
  only_pipeline(plan).stages[0].recompute = query.config.recompute;
  bool suffice = false;
  why_left_out(request_, [&] { suffice = is_worse(said.option, price_alone(query, plan)); });
  return suffice;
}

const std::optional<StageSolution>& StageSynthesis::solution(const Key& key) {
  if (!solved_.contains(key)) solve({key});
  return solved_.at(key);
}

const std::optional<StageSolution>& StageSynthesis::whole(const StageQuery& query) {
  return solution({query, false});
}

void StageSynthesis::solve_wholes(const std::vector<StageQuery>& queries) {
  std::vector<Key> keys;
  for (const StageQuery& query : queries) keys.push_back({query, false});
  solve(std::move(keys));
}

std::vector<Nanoseconds> StageSynthesis::sums_of_layers(const std::vector<StageQuery>& queries) {
  std::vector<Key> keys;
  for (const StageQuery& query : queries)
    for (int l = query.begin; l < query.end; ++l)
      keys.push_back(layer_key(l, query.mesh, query.config));
  solve(keys);
  std::vector<Nanoseconds> sums;
  auto key = keys.begin();
  for (const StageQuery& query : queries) {
    Nanoseconds sum;
    bool known = true;
    for (int l = query.begin; l < query.end; ++l, ++key) {
      const std::optional<StageSolution>& one = solved_.at(*key);
      known &= one.has_value();
      if (!one) continue;
      const StageOption& option = one->option;
      sum += (option.forward + option.backward) * query.config.microbatches + option.update;
    }
    sums.push_back(known ? sum : Nanoseconds{});
  }
  return sums;
}

// Only the first of layers with equal structure is synthesised.
StageSynthesis::Key StageSynthesis::layer_key(int layer,
                                              const StageMesh& mesh,
                                              const StageConfig& config) const {
  const int first = like_[at(layer)];
  return {{first, first + 1, mesh, config}, true};
}

bool StageSynthesis::has_plenty(const StageOption& option, const StageMesh& mesh) const {
  const double memory = least_memory(request_.cluster, mesh.devices);
  const Bytes needed = option.persistent + option.transient + option.saved * kPlenty;
  return static_cast<double>(needed.value) <= memory;
}

const std::vector<StageOption>& StageSynthesis::sums(std::optional<Sums>& sums,
                                                     int begin,
                                                     const StageMesh& mesh,
                                                     const StageConfig& config) {
  if (!sums) {
    sums.emplace();
    sums->ranges.resize(layers_.layers.size());
    for (int i = 0; i < static_cast<int>(layers_.layers.size()); ++i) {
      const auto& one = solution(layer_key(i, mesh, config));
      sums->layers.push_back(one ? &one->option : nullptr);
    }
  }
  std::vector<StageOption>& all = sums->ranges[at(begin)];
  if (!all.empty()) return all;
  all.emplace_back();
  for (size_t i = at(begin); i < sums->layers.size() && sums->layers[i]; ++i) {
    const StageOption& one = *sums->layers[i];
    StageOption sum = all.back();
    sum.forward += one.forward;
    sum.backward += one.backward;
    sum.weights += one.weights;
    sum.update += one.update;
    sum.persistent += one.persistent;
    sum.saved += one.saved;
    sum.transient = std::max(sum.transient, one.transient);
    all.push_back(sum);
  }
  return all;
}

void StageSynthesis::offer(StageOption option, int id, std::vector<StageOption>& options) const {
  if (option.forward + option.backward + option.update >= kLongest) return;
  option.id = id;
  if (std::none_of(options.begin(), options.end(), [&](const StageOption& other) {
        return is_worse(option, other);
      }))
    options.push_back(option);
}

StageOptionTable& StageSynthesis::offers(const StageMesh& mesh, const StageConfig& config) {
  const auto [found, is_new] = offers_.try_emplace({config, mesh});
  StageOptionTable& all = found->second;
  if (!is_new) return all;
  all.mesh_ = mesh;
  all.each_.push_back({config, {}});
  if (const int inner = second_axis(mesh, config); inner > 1)
    all.each_.push_back({on_two_axes(config, inner), {}});
  return all;
}

// Returns the size of the second axis; 1 without one.
int StageSynthesis::second_axis(const StageMesh& mesh, const StageConfig& config) const {
  const std::vector<std::vector<int>> nodes = by_node(request_.cluster, mesh.devices);
  const size_t each = nodes[0].size();
  if (nodes.size() == 1 || nodes.size() * each != mesh.devices.size()) return 1;
  int inner = 1;
  while (each % (2 * at(inner)) == 0) inner *= 2;
  const auto outer = static_cast<int64_t>(mesh.devices.size()) / inner;
  return config.rows >= outer ? inner : 1;
}

std::optional<StageConfig> StageSynthesis::on_nodes(const StageMesh& mesh,
                                                    const StageConfig& config) const {
  const int inner = second_axis(mesh, config);
  if (inner == 1) return std::nullopt;
  return on_two_axes(config, inner, StageStyle::kBest);
}

std::vector<StageOption> StageSynthesis::options(int begin,
                                                 int end,
                                                 StageOptionTable& offers,
                                                 Nanoseconds longest) {
  const StageMesh& mesh = offers.mesh_;
  const auto layers = at(end - begin);
  std::vector<StageOption> result;
  for (auto& [each, prices] : offers.each_) {
    for (size_t p = 0; p < num_prices(mesh); ++p) {
      const std::vector<StageOption>& kept = sums(prices.kept[p], begin, mesh, at_price(each, p));
      if (layers >= kept.size()) continue;
      const StageOption& none = kept[layers];
      const int id = id_of(each.inner, p);
      offer(none, id, result);
      if (has_plenty(none, mesh) || none.forward + none.backward > longest) break;
      const std::vector<StageOption>& again =
          sums(prices.again[p], begin, mesh, at_price(each, p, kAll));
      StageOption all = again[layers];
      offer(all, id + 2, result);  // blocks, for each layer
      all.saved = again[1].saved;
      all.transient = none.transient + none.saved - all.saved;
      offer(all, id + 1, result);
    }
  }
  return result;
}

// Returns whether memory is short for a range within `longest`; the longest ranges decide.
bool StageSynthesis::needs_prices(const StageMesh& mesh, Offer& offer, Nanoseconds longest) {
  std::optional<Sums>& kept = offer.prices.kept[0];
  for (int begin = 0; begin < static_cast<int>(layers_.layers.size()); ++begin) {
    const std::vector<StageOption>& ranges = sums(kept, begin, mesh, at_price(offer.config, 0));
    const auto end = std::ranges::partition_point(ranges, [&](const StageOption& option) {
      return option.forward + option.backward <= longest;
    });
    if (end != ranges.begin() && !has_plenty(*std::prev(end), mesh)) return true;
  }
  return false;
}

void StageSynthesis::solve_layers(const std::vector<std::pair<StageMesh, StageConfig>>& uses,
                                  Nanoseconds longest) {
  const int all = static_cast<int>(layers_.layers.size());
  std::vector<std::pair<const StageMesh*, Offer*>> every;
  for (const auto& [mesh, config] : uses)
    for (Offer& offer : offers(mesh, config).each_) every.emplace_back(&mesh, &offer);
  std::vector<Key> first, more;
  for (const auto& [mesh, offer] : every)
    for (int i = 0; i < all; ++i) first.push_back(layer_key(i, *mesh, at_price(offer->config, 0)));
  solve(first);
  for (const auto& [mesh, offer] : every) {
    if (!needs_prices(*mesh, *offer, longest)) continue;
    for (size_t p = 0; p < num_prices(*mesh); ++p)
      for (int i = 0; i < all; ++i)
        more.push_back(layer_key(i, *mesh, at_price(offer->config, p, kAll)));
  }
  solve(more);
}

std::shared_ptr<StageSynthesis> stages_of(const Request& request, const LayerOptions& layers) {
  if (!request.cache.stages) return std::make_shared<StageSynthesis>(request, layers);
  std::shared_ptr<StageSynthesis>& stages =
      (*request.cache.stages)[layers.per_block * layers.parts];
  if (!stages) stages = std::make_shared<StageSynthesis>(request, layers);
  return stages;
}

std::vector<int64_t> microbatch_counts(const Request& request, int pipelines) {
  const int64_t most = int64_t{1024} * pipelines;
  if (request.microbatches > 0) return {request.microbatches};
  if (!request.cache.analysis->coupling.empty()) return {1};
  std::vector<int64_t> counts;
  for (int64_t rows = 1; counts.empty() || counts.back() > 1; rows *= 2)
    if (const int64_t count = (request.global_batch + rows - 1) / rows; count <= most)
      counts.push_back(count);
  std::ranges::reverse(counts);
  return counts;
}

std::optional<Nanoseconds> step_on_mesh(const Request& request,
                                        const StageMesh& mesh,
                                        const std::vector<int64_t>& counts,
                                        Bytes room,
                                        Nanoseconds below,
                                        StageSynthesis& stages) {
  const auto layers = static_cast<int>(stages.layers().layers.size());
  std::optional<Nanoseconds> least;
  for (const int64_t count : counts) {
    const int64_t rows = (request.global_batch + count - 1) / count;
    const StageConfig config{rows, count, 0, StageStyle::kBest};
    const Nanoseconds longest{below.value / count};
    stages.solve_layers({{mesh, config}}, longest);
    for (const StageOption& option :
         stages.options(0, layers, stages.offers(mesh, config), longest)) {
      const Nanoseconds step = (option.forward + option.backward) * count + option.update;
      if (option.persistent + option.saved + option.transient <= room && step < below)
        least = std::min(least.value_or(step), step);
    }
  }
  return least;
}

StageConfig StageSynthesis::config_of(const StageOption& option,
                                      StageConfig config,
                                      int in_flight) {
  const auto id = at(option.id);
  const size_t price = id / kRecompute.size();
  config = at_price(config, price % kBytePrices.size(), kRecompute[id % kRecompute.size()]);
  const int inner = 1 << price / kBytePrices.size();
  if (inner > 1) config = on_two_axes(config, inner);
  if (config.recompute == kBlocks) config.in_flight = in_flight;
  return config;
}

}  // namespace medley
