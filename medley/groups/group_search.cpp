#include "medley/groups/group_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/schedule/period.h"

namespace medley {
namespace {

constexpr double kFirstStep = 2;  // factor on a lower bound of the step: start of pricing
constexpr int kMostFirstSteps = 6;
// Limits of chain searches: for new pipelines, for a bound, for one with memory, for a closer one.
constexpr int64_t kMostSearches = 500, kMostRoughSearches = 2000, kMostRoomSearches = 1000,
                  kMostCloseSearches = 300;
constexpr double kCloseEnough = 0.05;  // relative gap of a bound of many devices
constexpr int kMostCounted = 32;       // devices; above it, chains exclude gradient sums
constexpr int kManyNodes = 4;          // per pool
// Chains per amount of devices and number of micro-batches. For small amounts of many devices,
// which have many pipelines, more chains are timed with stages as wholes.
constexpr int kOfEachAmount = 2, kOfFewDevices = 8;
constexpr int kMostImprovements = 64;
constexpr size_t kMostCompared = 64;  // divisions with actual links

// Returns the most micro-batches at its period: the original number if more of them would exceed a
// stage's memory.
int64_t most_at_period(PipelinePlan plan, int64_t all) {
  const auto found = plan.microbatches;
  plan.microbatches = static_cast<int>(all);
  const std::vector<int> counts =
      counts_for_period(std::max(plan.period, Nanoseconds{1}), schedule_request(plan).times);
  for (size_t s = 0; s < counts.size(); ++s)
    if (counts[s] > plan.stages[s].room) return found;
  return all;
}

Units numbers_of_devices(const std::vector<PipelinePool>& pools) {
  Units numbers;
  for (const PipelinePool& pool : pools) numbers.push_back(pool.devices);
  return numbers;
}

}  // namespace

GroupSearch::GroupSearch(GroupRequest request)
    : request_(std::move(request)),
      devices_(numbers_of_devices(request_.pools)),
      generation_(devices_, request_.rows, request_.pipelines),
      least_(request_.least) {}

int GroupSearch::num_devices() const {
  return std::accumulate(devices_.begin(), devices_.end(), 0);
}

bool GroupSearch::is_small() const { return num_devices() <= kMostCounted; }

bool GroupSearch::is_large() const { return num_devices() > kMostInDetail; }

Nanoseconds GroupSearch::limit() const {
  Nanoseconds limit{kLongestStep};
  if (step_)
    limit = std::max(
        sure_.value_or(*step_),
        Nanoseconds{static_cast<int64_t>(static_cast<double>(step_->value) * request_.slower)});
  return request_.faster_than ? std::min(limit, *request_.faster_than) : limit;
}

// Returns the amount's share of all devices' speed.
double GroupSearch::share(const Units& amount) const {
  double own = 0, all = 0;
  for (size_t p = 0; p < amount.size(); ++p) {
    own += request_.speeds[p] * amount[p];
    all += request_.speeds[p] * devices_[p];
  }
  return own / all;
}

Nanoseconds GroupSearch::longest_stage(int64_t count) const {
  double least = request_.amounts.empty() ? 0 : 1;
  for (const Units& amount : request_.amounts) least = std::min(least, share(amount));
  const double microbatches = std::max(1.0, least * static_cast<double>(count));
  return {static_cast<int64_t>(static_cast<double>(limit().value) / microbatches)};
}

bool GroupSearch::enough() {
  if (!step_) return false;
  if (is_over()) return true;
  return request_.step_gap && 1 - bound() / *step_ <= *request_.step_gap;
}

PipelineRequest GroupSearch::chains_of(const MicrobatchChoice& choice, size_t pipelines) const {
  PipelineRequest request;
  request.layers = request_.layers;
  request.pools = request_.pools;
  request.links = request_.sums.links;
  request.candidates = kOfEachAmount;
  request.gap = request_.gap;
  request.explain = false;
  request.microbatches = {choice};
  if (pipelines < 2) return request;
  // If sums take as long as micro-batches, many more chains are worth keeping.
  if (is_small())
    request.sums = [this, pipelines](const StageRange& stage) {
      return request_.sums.about(stage, pipelines);
    };
  request.sums_at_least = [this](const StageRange& stage) { return request_.sums.at_least(stage); };
  return request;
}

// Restricts stages to whole nodes in pools with many.
PipelineRequest GroupSearch::on_nodes(PipelineRequest request) const {
  for (size_t p = 0; p < request.pools.size(); ++p) {
    PipelinePool& pool = request.pools[p];
    const int node = request_.sums.per_node[p];
    if (pool.devices >= kManyNodes * node)
      std::erase_if(pool.sizes, [&](int size) { return size < node; });
  }
  return request;
}

void GroupSearch::add(const MicrobatchChoice& choice, int64_t rows, bool last) {
  Choice& added = choices_.emplace_back(Choice{choice, rows, {}, {}});
  auto& [by_amount, in_detail, at_prices, none] = added.fewest;
  const PipelineRequest request = chains_of(choice, request_.pipelines);
  if (!request_.amounts.empty() && request_.pools.size() <= kMostCountedPools) {
    PipelineRequest summing = request;
    if (is_large())
      summing.summed = [this](const StageRange& stage) {
        return held_while_summed(request_.sums.gradients, stage);
      };
    by_amount = std::make_shared<Chains>(is_large() ? on_nodes(summing) : summing);
    summing.candidates = kOfFewDevices;
    if (is_large() && last) in_detail = std::make_shared<Chains>(summing);
    search_amounts(added);
  }
  if (last) {
    at_prices = by_amount && !is_large() ? by_amount : std::make_shared<Chains>(request);
    generation_.add_choice(rows, *at_prices);
    generated_.push_back(choices_.size() - 1);
    if (request_.amounts.empty()) search_at_prices();
  }
  if (!last) by_amount.reset();
  find_step();
}

// Finds the best chains for each amount of devices. Equal pipelines come first: their step is known
// with all links, and limits the search for others. Others use whole blocks first, and all cuts
// where the best divisions use them.
void GroupSearch::search_amounts(const Choice& choice) {
  std::vector<Units> all = request_.amounts;
  const auto others = std::ranges::stable_partition(
      all, [&](const Units& amount) { return copies_of(amount) > 0; });
  if (search_amounts(choice, {all.begin(), others.begin()}, 1)) find_step();
  if (!search_amounts(choice, {others.begin(), others.end()}, request_.layers_of_block)) return;
  find_step();
  if (request_.layers_of_block > 1) search_amounts(choice, used_amounts(choice), 1);
}

// Returns the amounts that the best divisions use with such micro-batches, except for those of
// identical pipelines.
std::vector<Units> GroupSearch::used_amounts(const Choice& choice) const {
  DivisionRequest request = division_request();
  request.divisions = kMostCompared;
  std::set<Units> used;
  for (const Division& division : best_divisions(request))
    for (const int column : division.columns)
      if (const Column& own = columns_[at(column)];
          own.rows == choice.rows && copies_of(own.units) == 0)
        used.insert(own.units);
  return {used.begin(), used.end()};
}

// Returns whether it found better chains.
bool GroupSearch::search_amounts(const Choice& choice,
                                 const std::vector<Units>& amounts,
                                 int cut_every) {
  std::vector<std::vector<PipelinePlan>> found(amounts.size());
  for_each_in_parallel(amounts.size(), [&](size_t i) {
    const double own = share(amounts[i]) * static_cast<double>(choice.asked.count);
    const int microbatches = std::max(1, static_cast<int>(own + 0.5));
    const auto& [by_amount, in_detail, at_prices, none] = choice.fewest;
    const bool few = std::accumulate(amounts[i].begin(), amounts[i].end(), 0) <= kMostInDetail;
    found[i] = (in_detail && few ? in_detail : by_amount)
                   ->on(amounts[i], microbatches, limit(), cut_every);
  });
  bool added = false;
  for (size_t i = 0; i < amounts.size(); ++i)
    for (const PipelinePlan& plan : found[i])
      added |= add_column(amounts[i], plan, choice, request_.pipelines);
  return added;
}

int64_t GroupSearch::most_microbatches(const Units& amount,
                                       const Choice& choice,
                                       Nanoseconds step,
                                       size_t pipelines) const {
  int64_t most = 0;
  for (const Column& column : columns_)
    if (column.rows == choice.rows && std::ranges::equal(column.units, amount, std::less_equal{}))
      most = std::max(most, rows_in(column, step, pipelines) / column.rows);
  return most;
}

GroupSearch::Searches& GroupSearch::searches(Choice& choice, size_t pipelines) const {
  if (pipelines == request_.pipelines) return choice.fewest;
  const auto [known, is_new] = choice.more.try_emplace(pipelines);
  auto& [by_amount, in_detail, at_prices, none] = known->second;
  if (!is_new) return known->second;
  by_amount = std::make_shared<Chains>(chains_of(choice.asked, pipelines));
  if (choice.fewest.at_prices) at_prices = by_amount;
  return known->second;
}

// Searches more pipelines than the fewest only after the fewest stop improving. Until then the most
// rows of each amount with their sums are unknown.
void GroupSearch::improve() {
  std::optional<Nanoseconds> before;
  do {
    before = step_;
    improve(request_.pipelines);
    const std::optional<Nanoseconds> of_fewest = step_;
    for (size_t pipelines = request_.pipelines + 1;
         is_small() && step_ == of_fewest && pipelines <= kMostPipelines;
         ++pipelines)
      if (may_be_shorter(pipelines)) improve(pipelines);
  } while (step_ && step_ != before && !is_over());
}

// Returns whether `pipelines` may have a shorter step, with the sums of the fewest.
bool GroupSearch::may_be_shorter(size_t pipelines) const {
  if (!step_ || is_over()) return false;
  DivisionRequest request = division_request();
  for (Column& column : request.columns) column.after = {column.after[request_.pipelines]};
  request.pipelines = pipelines;
  request.most_pipelines = std::min(pipelines, request.most_pipelines);
  request.divisions = 1;
  request.slower = 1;
  const std::vector<Division> found = best_divisions(request);
  return !found.empty() && found[0].step < *step_;
}

// Searches each amount of devices for pipelines that do more in less than the shortest step, until
// none remain. Sums are those of `pipelines`.
void GroupSearch::improve(size_t pipelines) {
  const std::vector<Units>& amounts = request_.amounts;
  bool added = true;
  for (int round = 0; step_ && added && round < kMostImprovements; ++round) {
    if (is_over()) return;
    added = false;
    const Nanoseconds shorter = *step_ - Nanoseconds{1};
    for (Choice& choice : choices_) {
      if (!choice.fewest.by_amount) continue;
      Searches& searches = this->searches(choice, pipelines);
      searches.none.resize(amounts.size(), {std::numeric_limits<int64_t>::max(), {}});
      std::vector<std::vector<PipelinePlan>> found(amounts.size());
      for_each_in_parallel(amounts.size(), [&](size_t i) {
        const int64_t more = most_microbatches(amounts[i], choice, shorter, pipelines) + 1;
        auto& [fewest, longest] = searches.none[i];
        if (more > choice.asked.count || (more >= fewest && *step_ <= longest)) return;
        found[i] = searches.by_amount->on(amounts[i], static_cast<int>(more), *step_);
        if (found[i].empty()) std::tie(fewest, longest) = std::pair(more, *step_);
      });
      for (size_t i = 0; i < amounts.size(); ++i)
        for (const PipelinePlan& plan : found[i])
          added |= add_column(amounts[i], plan, choice, pipelines);
    }
    find_step();
  }
}

void GroupSearch::search_at_prices() {
  const size_t known = generation_.columns().size();
  double step = step_ ? static_cast<double>(step_->value)
                      : kFirstStep * static_cast<double>(request_.least.value);
  for (int i = 0; i < kMostFirstSteps; ++i, step *= kFirstStep) {
    GenerationLimits limits;
    limits.searches = kMostSearches;
    limits.is_over = request_.is_over;
    const double rows = generation_.generate({static_cast<int64_t>(step)}, limits);
    if (step_ || rows >= static_cast<double>(request_.rows)) break;
  }
  const std::vector<PipelineColumn>& columns = generation_.columns();
  for (size_t c = known; c < columns.size(); ++c)
    add_column(columns[c].devices,
               columns[c].plan,
               choices_[generated_[columns[c].choice]],
               request_.pipelines);
  find_step();
}

// `pipelines`: the number it was searched with.
bool GroupSearch::add_column(const Units& devices,
                             const PipelinePlan& plan,
                             const Choice& choice,
                             size_t pipelines) {
  const auto after = [&](size_t number) {
    std::vector<Nanoseconds> sums;
    for (const PipelineStage& stage : plan.stages)
      sums.push_back(request_.sums.about(stage.range, number));
    return after_last_backward(plan, sums);
  };
  const Nanoseconds alone = after(1), found = is_small() ? after(pipelines) : alone;
  Column column{devices, choice.rows, {}, std::max(plan.period, Nanoseconds{1}), {}};
  column.fill = plan.predicted - found + alone - plan.period * (plan.microbatches - 1);
  for (size_t count = 0; count <= kMostPipelines; ++count)
    column.after.push_back(after(count) - alone);
  column.most = most_at_period(plan, choice.asked.count);
  const bool known = std::ranges::any_of(columns_, [&](const Column& other) {
    return other.rows == column.rows && other.units == column.units &&
           other.period <= column.period && other.fill <= column.fill &&
           other.most >= column.most &&
           std::ranges::equal(other.after, column.after, std::less_equal{});
  });
  if (known) return false;
  columns_.push_back(std::move(column));
  chains_.push_back({plan, choice.asked.count});
  return true;
}

DivisionRequest GroupSearch::division_request() const {
  DivisionRequest request;
  request.units = devices_;
  request.columns = columns_;
  request.rows = request_.rows;
  request.pipelines = request_.pipelines;
  // Each has at least one row.
  request.most_pipelines = std::min(kMostPipelines, static_cast<size_t>(request_.rows));
  request.slower = request_.slower;
  return request;
}

std::vector<Column> GroupSearch::columns(const std::vector<int>& numbers) const {
  std::vector<const PipelinePlan*> plans;
  for (const int number : numbers) plans.push_back(&chains_[at(number)].plan);
  const auto sums = request_.sums.between(plans);
  std::vector<Column> own;
  for (size_t i = 0; i < numbers.size(); ++i) {
    Column& column = own.emplace_back(columns_[at(numbers[i])]);
    const std::vector<Nanoseconds> none(plans[i]->stages.size());
    const Nanoseconds after =
        sums ? after_last_backward(*plans[i], (*sums)[i]) - after_last_backward(*plans[i], none)
             : kLongest;
    column.after.assign(numbers.size() + 1, after);
  }
  return own;
}

// Returns how many identical pipelines, each with this amount of devices, use all devices; 0 if
// fewer than two.
int GroupSearch::copies_of(const Units& amount) const {
  const int copies = devices_[0] / std::max(1, amount[0]);
  const bool all = std::ranges::equal(
      amount, devices_, [&](int part, int devices) { return part * copies == devices; });
  return all && copies > 1 ? copies : 0;
}

// They sum within pools. Other divisions with most rows sum over links between pools, which they
// ignore.
std::vector<Division> GroupSearch::identical() const {
  const size_t most = std::min(kMostIdentical, static_cast<size_t>(request_.rows));
  std::vector<Division> found;
  for (size_t c = 0; c < columns_.size(); ++c)
    if (const auto copies = at(copies_of(columns_[c].units));
        copies > 0 && copies >= request_.pipelines && copies <= most)
      found.push_back({{}, std::vector<int>(copies, static_cast<int>(c))});
  return found;
}

// Returns the shortest steps first.
std::vector<Division> GroupSearch::with_links(std::vector<Division> divisions) const {
  for (Division& division : identical())
    if (std::ranges::find(divisions, division.columns, &Division::columns) == divisions.end())
      divisions.push_back(std::move(division));
  for (Division& division : divisions)
    if (division.columns.size() > 1)
      division.step = split_rows(columns(division.columns), request_.rows).step;
  std::ranges::stable_sort(divisions, {}, &Division::step);
  return divisions;
}

std::vector<Division> GroupSearch::divisions(size_t most) const {
  if (!step_) return {};
  DivisionRequest request = division_request();
  request.divisions = kMostCompared;
  request.slower = static_cast<double>(limit().value) / static_cast<double>(step_->value);
  std::vector<Division> found = with_links(best_divisions(request));
  const double longest =
      found.empty() ? 0 : static_cast<double>(found[0].step.value) * request_.slower;
  std::erase_if(found, [&](const Division& division) {
    return static_cast<double>(division.step.value) > longest ||
           (request_.faster_than && division.step >= *request_.faster_than);
  });
  if (found.size() > most) found.resize(most);
  return found;
}

void GroupSearch::find_step() {
  DivisionRequest best = division_request();
  best.divisions = kMostCompared;
  best.slower = 1;
  const std::vector<Division> found = best_divisions(best);
  if (found.empty()) return;
  step_ = found[0].step;
  sure_ = with_links(found)[0].step;
}

Nanoseconds GroupSearch::bound() {
  if (generated_.empty() || (!step_ && !request_.faster_than)) return least_;
  const Nanoseconds long_enough = step_ ? std::min(*step_, limit()) : *request_.faster_than;
  if (!is_small()) return bound_of_many(long_enough);
  bound(long_enough, Closeness::kRough, {.searches = kMostRoughSearches});
  return bound(long_enough, Closeness::kClose, {.searches = kMostCloseSearches});
}

Nanoseconds GroupSearch::bound(Nanoseconds long_enough,
                               Closeness closeness,
                               GenerationLimits limits) {
  limits.is_over = request_.is_over;
  return least_ = std::max(least_, generation_.bound(long_enough, closeness, limits));
}

// Bounds with memory take longer: one step is tried without it.
Nanoseconds GroupSearch::bound_of_many(Nanoseconds long_enough) {
  const auto is_close = [&] { return 1 - least_ / long_enough <= kCloseEnough; };
  GenerationLimits rough{
      .closer = kCloseEnough, .searches = kMostRoughSearches, .steps = 1, .far = true};
  bound(long_enough, Closeness::kRough, rough);
  if (is_close()) return least_;
  const Nanoseconds before = least_;
  bound(long_enough,
        Closeness::kRooms,
        {.closer = kCloseEnough, .searches = kMostRoomSearches, .far = true});
  if (least_ > before || is_over()) return least_;
  return bound(long_enough, Closeness::kRough, {.searches = kMostRoughSearches});
}

}  // namespace medley
