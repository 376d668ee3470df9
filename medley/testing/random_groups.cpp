#include "medley/testing/random_groups.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <string>

#include "medley/base/at.h"
#include "medley/schedule/period.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

constexpr int64_t kLongestStep = 1 << 20;

class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}
  int operator()(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 random_;
};

void add_pools(GroupInstance& instance, Chance& draw) {
  PipelineRequest& request = instance.request;
  const int pools = draw(1, 3);
  int left = draw(pools, 6);
  const bool tight = draw(0, 1) == 1;
  for (int p = 0; p < pools; ++p) {
    PipelinePool& pool = request.pools.emplace_back();
    pool.name = std::string(1, static_cast<char>('a' + p));
    pool.devices = p + 1 == pools ? left : draw(1, left - (pools - 1 - p));
    left -= pool.devices;
    for (int size = 1; size <= pool.devices; ++size)
      if (size == 1 || draw(0, 2) == 0) pool.sizes.push_back(size);
    pool.memory = {tight ? draw(6, 14) : draw(10, 40)};
    instance.devices.push_back(pool.devices);
  }
  request.links.assign(at(pools), {});
  for (int from = 0; from < pools; ++from)
    for (int to = 0; to < pools; ++to) {
      auto& link = request.links[at(from)].emplace_back();
      if (from != to && draw(0, 9) == 0) continue;
      link = LinkCurve{{{Bytes{1}, Nanoseconds{from == to ? draw(0, 1) : draw(0, 3)}}},
                       Nanoseconds{draw(0, 2)}};
    }
}

void add_choice(GroupInstance& instance, int64_t rows, Chance& draw) {
  const PipelineRequest& request = instance.request;
  auto table = std::make_unique<GroupInstance::Options>();
  for (size_t p = 0; p < request.pools.size(); ++p)
    for (const int size : request.pools[p].sizes)
      for (int begin = 0; begin < request.layers; ++begin)
        for (int end = begin + 1; end <= request.layers; ++end)
          for (int count = draw(0, 9) == 0 ? 0 : draw(1, 2); count-- > 0;) {
            const int work = static_cast<int>(rows + 1) * (end - begin) * draw(1, 6);
            const int time = 1 + work / size;
            StageOption& option = (*table)[{begin, end, static_cast<int>(p), size}].emplace_back();
            option.forward = {time / 3};
            option.backward = {time - time / 3};
            option.update = {draw(0, 3) == 0 ? draw(0, 12) : 0};
            option.persistent = {draw(0, 4)};
            option.saved = {draw(0, 4)};
            option.transient = {draw(0, 2)};
          }
  MicrobatchChoice choice;
  choice.count = static_cast<int>((instance.rows + rows - 1) / rows);
  for (int l = 1; l < request.layers; ++l) choice.cuts.push_back({{draw(0, 4)}, {draw(0, 4)}});
  choice.options = [known = table.get()](const StageRange& range) {
    const auto found = known->find(range);
    return found == known->end() ? std::vector<StageOption>{} : found->second;
  };
  instance.rows_of_microbatch.push_back(rows);
  instance.options.push_back(std::move(table));
  instance.choices.push_back(std::move(choice));
}

void add_sums(GroupInstance& instance, Chance& draw) {
  const int most = draw(0, 1) == 1 ? 4 : 20;
  for (int l = 0; l < instance.request.layers; ++l)
    instance.sums.gradients.push_back({draw(0, most)});
}

}  // namespace

GroupInstance random_groups(uint64_t seed, bool sums) {
  Chance draw(seed);
  GroupInstance instance;
  instance.request.layers = draw(0, 3) == 0 ? draw(4, 6) : draw(1, 4);
  instance.rows = draw(2, 40);
  add_pools(instance, draw);
  const std::array<int64_t, 3> sizes{1, 2, 4};
  const int first = draw(0, 2);
  add_choice(instance, sizes[at(first)], draw);
  if (first < 2 && draw(0, 1) == 1) add_choice(instance, sizes[at(first + 1)], draw);
  instance.sums.links = instance.request.links;
  instance.sums.devices = instance.devices;
  for (const int devices : instance.devices)
    instance.sums.per_node.push_back(devices % 2 == 0 ? draw(1, 2) : 1);
  if (sums) add_sums(instance, draw);
  return instance;
}

uint64_t group_seeds() { return seeds_of("MEDLEY_GROUP_SEEDS", 100); }

AllGroups::AllGroups(const GroupInstance& instance) : instance_(instance) {
  for (choice_ = 0; choice_ < instance.choices.size(); ++choice_) {
    std::vector<int> left = instance.devices;
    extend(0, left);
  }
}

std::optional<int64_t> AllGroups::best_pipeline(size_t choice) const {
  std::optional<int64_t> best;
  for (const auto& [devices, steps] : steps_)
    if (const auto found = steps.find({choice, instance_.choices[choice].count});
        found != steps.end())
      best = std::min(best.value_or(found->second[1]), found->second[1]);
  return best;
}

double AllGroups::rows_in_parts(int64_t step, size_t pipelines) const {
  std::vector<MasterColumn> columns;
  for (const Known& chain : chains_) {
    const int64_t rows = instance_.rows_of_microbatch[chain.choice];
    int64_t count = 0;
    while (count * rows < instance_.rows && may_do(chain, count + 1, step, pipelines < 2)) ++count;
    if (count > 0)
      columns.push_back(
          {chain.devices, static_cast<double>(std::min(instance_.rows, count * rows))});
  }
  return solve_master(instance_.devices, columns, pipelines > 1 ? static_cast<int>(pipelines) : 0)
      .rows;
}

std::optional<int64_t> AllGroups::best(size_t pipelines) const {
  std::optional<int64_t> best;
  int all = 0;
  for (const int devices : instance_.devices) all += devices;
  for (size_t count = pipelines; count <= at(all); ++count)
    if (const std::optional<int64_t> step = best_of(count))
      best = std::min(best.value_or(*step), *step);
  return best;
}

std::optional<int64_t> AllGroups::best_of(size_t pipelines) const {
  const auto enough = [&](int64_t step) {
    return most_rows(step, instance_.devices, steps_.begin(), pipelines, pipelines) >=
           instance_.rows;
  };
  int64_t low = 0, high = kLongestStep;
  if (!enough(high)) return std::nullopt;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

// Returns 0 if not even one micro-batch fits.
int64_t AllGroups::rows_of(const Steps& steps, int64_t step, size_t pipelines) const {
  int64_t most = 0;
  for (const auto& [key, times] : steps)
    if (times[pipelines] <= step)
      most = std::max(most, instance_.rows_of_microbatch[key.first] * key.second);
  return most;
}

// `missing` of the `pipelines` are still to be formed. Returns a negative value if there are fewer.
int64_t AllGroups::most_rows(int64_t step,
                             const std::vector<int>& left,
                             ByDevices::const_iterator from,
                             size_t pipelines,
                             size_t missing) const {
  if (missing == 0) return 0;
  int64_t most = std::numeric_limits<int64_t>::min() / 2;
  for (auto next = from; next != steps_.end(); ++next) {
    std::vector<int> rest = left;
    bool fits = true;
    for (size_t p = 0; p < rest.size(); ++p) fits &= (rest[p] -= next->first[p]) >= 0;
    if (!fits) continue;
    const int64_t own = rows_of(next->second, step, pipelines);
    if (own > 0) most = std::max(most, own + most_rows(step, rest, next, pipelines, missing - 1));
  }
  return most;
}

void AllGroups::extend(int begin, std::vector<int>& left) {
  if (begin == instance_.request.layers) return judge(left);
  for (int p = 0; p < static_cast<int>(left.size()); ++p) {
    const bool first = plan_.stages.empty();
    if (!first && !add_boundary(plan_.stages.back().range, p)) continue;
    for (const int size : instance_.request.pools[at(p)].sizes) {
      if (size > left[at(p)]) continue;
      left[at(p)] -= size;
      for (int end = begin + 1; end <= instance_.request.layers; ++end)
        for (const StageOption& option :
             instance_.choices[choice_].options({begin, end, p, size})) {
          plan_.stages.push_back({{begin, end, p, size}, option, 0, 0});
          extend(end, left);
          plan_.stages.pop_back();
        }
      left[at(p)] += size;
    }
    if (!first) plan_.boundaries.pop_back();
  }
}

bool AllGroups::add_boundary(const StageRange& before, int to) {
  const auto& up = instance_.request.links[at(before.pool)][at(to)];
  const auto& down = instance_.request.links[at(to)][at(before.pool)];
  if (!up || !down) return false;
  const CutBytes& cut = instance_.choices[choice_].cuts[at(before.end - 1)];
  plan_.boundaries.push_back({occupied(*up, cut.up),
                              occupied(*down, cut.down),
                              {(up->latency + down->latency).value / 2}});
  return true;
}

void AllGroups::judge(const std::vector<int>& left) {
  std::vector<int> used;
  int all = 0;
  for (size_t p = 0; p < left.size(); ++p) {
    used.push_back(instance_.devices[p] - left[p]);
    all += instance_.devices[p];
  }
  chains_.push_back({choice_, used, plan_});
  for (int count = 1; count <= instance_.choices[choice_].count; ++count) {
    const std::optional<Nanoseconds> step = step_of(count);
    if (!step) continue;
    const auto [known, is_new] =
        steps_[used].try_emplace({choice_, count}, std::vector<int64_t>(at(all) + 1, kLongestStep));
    for (size_t pipelines = 1; pipelines <= at(all); ++pipelines)
      known->second[pipelines] = std::min(known->second[pipelines], step->value + after(pipelines));
  }
}

// Returns a step by the equations of pipeline.h, except W, or nothing if it does not fit.
std::optional<Nanoseconds> AllGroups::step_of(int count) {
  plan_.microbatches = count;
  Nanoseconds sum, period{1};
  for (size_t i = plan_.stages.size(); i-- > 0;) {
    PipelineStage& stage = plan_.stages[i];
    const StageOption& o = stage.option;
    const Bytes free =
        instance_.request.pools[at(stage.range.pool)].memory - o.persistent - o.transient;
    stage.room = free < Bytes{}       ? 0
                 : o.saved.value == 0 ? count
                                      : static_cast<int>(free.value / o.saved.value);
    if (stage.room < 1) return std::nullopt;
    stage.room = std::min(stage.room, count);
    sum += o.forward + o.backward;
    period = std::max(period, o.forward + o.backward);
    if (i >= plan_.boundaries.size()) continue;
    const BoundaryTimes& b = plan_.boundaries[i];
    sum += b.round_trip();
    period = std::max({period, b.forward, b.backward});
  }
  const ScheduleRequest request = schedule_request(plan_);
  const auto fits = [&](Nanoseconds at_period) {
    const std::vector<int> counts = counts_for_period(at_period, request.times);
    for (size_t i = 0; i < counts.size(); ++i)
      if (std::min(counts[i], count) > plan_.stages[i].room) return false;
    return true;
  };
  while (!fits(period)) period += Nanoseconds{1};
  return sum + period * (count - 1);
}

// Returns W of pipeline.h: each stage sums, then updates, while those before it go backward.
int64_t AllGroups::after(size_t pipelines) const {
  int64_t after = 0, overlapped = 0;
  for (size_t i = 0; i < plan_.stages.size(); ++i) {
    if (i > 0)
      overlapped += (plan_.stages[i - 1].option.backward + plan_.boundaries[i - 1].backward +
                     plan_.boundaries[i - 1].latency)
                        .value;
    const PipelineStage& stage = plan_.stages[i];
    const Nanoseconds own = stage.option.update + instance_.sums.about(stage.range, pipelines);
    after = std::max(after, own.value - overlapped);
  }
  return after;
}

// Checks the equations of chain_search.h.
bool AllGroups::may_do(const Known& chain, int64_t count, int64_t step, bool alone) const {
  const std::vector<PipelineStage>& stages = chain.plan.stages;
  int64_t before = 0, longest = 0;
  const auto sums = [&](size_t i) {
    return alone ? 0 : instance_.sums.at_least(stages[i].range).value;
  };
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageOption& o = stages[i].option;
    const int64_t time = (o.forward + o.backward).value;
    longest = std::max(longest, before + count * time);
    if (sums(i) > 0 && count * time - o.backward.value + sums(i) > step) return false;
    int64_t stays = 0;
    for (size_t j = i; j < stages.size(); ++j) {
      stays += (stages[j].option.forward + stages[j].option.backward).value;
      if (j + 1 < stages.size()) stays += chain.plan.boundaries[j].round_trip().value;
    }
    const Bytes free =
        instance_.request.pools[at(stages[i].range.pool)].memory - o.persistent - o.transient;
    const int64_t most = instance_.choices[chain.choice].count;
    const int64_t room = free < Bytes{} ? 0 : o.saved > Bytes{} ? free.value / o.saved.value : most;
    if (room < 1 || (room < most && count * stays > step * room)) return false;
    before += time;
    if (i + 1 == stages.size()) break;
    const BoundaryTimes& boundary = chain.plan.boundaries[i];
    before += boundary.round_trip().value;
    if (count * std::max(boundary.forward, boundary.backward).value > step) return false;
  }
  const StageOption& first = stages[0].option;
  const int64_t sums_after = std::max<int64_t>(0, sums(0) - first.backward.value);
  return longest + first.update.value + sums_after <= step;
}

}  // namespace medley
