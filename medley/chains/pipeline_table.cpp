#include "medley/chains/pipeline_table.h"

#include <numeric>
#include <utility>

#include "medley/base/error.h"
#include "medley/base/parallel.h"

namespace medley::pipeline {
namespace {

// With more of them, warm-up and drain are a small part of a step.
constexpr int kManyMicrobatches = 16;

// Returns how many micro-batches fit on a stage, at most `most`; kNever if all do.
int64_t room_of(const StageOption& option, Bytes memory, int64_t most) {
  const int64_t left = (memory - option.persistent - option.transient).value;
  if (left < 0) return 0;
  const int64_t room = option.saved.value > 0 ? left / option.saved.value : most;
  return room >= most ? kNever : room;
}

bool never_worse(const Option& a, const Option& b) {
  return a.time <= b.time && a.forward <= b.forward && a.fill <= b.fill && a.stays <= b.stays &&
         a.time + a.update <= b.time + b.update && a.room >= b.room && a.sums <= b.sums &&
         a.time + a.least_update <= b.time + b.least_update;
}

// Drops options dominated by another one on a mesh of at most that size; of equal ones the earlier
// stays. Options are in order of size.
void drop_dominated(std::vector<Option>& options, std::vector<StageOption>& offered) {
  std::vector<Option> kept;
  std::vector<StageOption> kept_offered;
  for (size_t i = 0; i < options.size(); ++i) {
    bool drop = false;
    for (size_t j = 0; j < options.size() && !drop; ++j)
      drop = j != i && options[j].size <= options[i].size && never_worse(options[j], options[i]) &&
             (j < i || !never_worse(options[i], options[j]) || options[j].size < options[i].size);
    if (drop) continue;
    kept.push_back(options[i]);
    kept_offered.push_back(offered[i]);
  }
  options = std::move(kept);
  offered = std::move(kept_offered);
}

Crossing crossing_of(const BoundaryTimes& times) {
  return {times.round_trip().value,
          std::max(times.forward, times.backward).value,
          (times.forward + times.latency).value,
          times,
          false};
}

// Returns [begin][end] the start of the first layers equal to [begin, end) in sequence.
std::vector<std::vector<int>> first_equal(const std::vector<int>& like, int layers) {
  const auto n = at(layers);
  std::vector<std::vector<int>> first(n + 1, std::vector<int>(n + 1, 0));
  std::vector<std::vector<int>> equal = first;  // length of the equal run from both on
  for (size_t begin = 0; begin < n; ++begin)
    std::ranges::fill(first[begin], static_cast<int>(begin));
  if (like.empty()) return first;
  for (size_t begin = n; begin-- > 0;)
    for (size_t other = n; other-- > 0;)
      if (like[begin] == like[other]) equal[begin][other] = equal[begin + 1][other + 1] + 1;
  for (size_t begin = 0; begin < n; ++begin)
    for (size_t other = begin; other-- > 0;)
      for (size_t end = begin; end <= begin + at(equal[begin][other]); ++end)
        first[begin][end] = static_cast<int>(other);
  return first;
}

}  // namespace

Table::Table(const PipelineRequest& request, int choice, bool ignore_memory)
    : stored_(std::make_shared<Stored>()),
      layers_(request.layers),
      microbatches_(request.microbatches[at(choice)].count) {
  size_t sizes = 0;
  for (const PipelinePool& pool : request.pools) {
    devices_.push_back(pool.devices);
    stored_->sizes.push_back(pool.sizes);
    std::ranges::sort(stored_->sizes.back());
    const auto same = std::ranges::unique(stored_->sizes.back());
    stored_->sizes.back().erase(same.begin(), same.end());
    std::erase_if(stored_->sizes.back(), [&](int size) { return size > pool.devices; });
    int unit = 0;
    for (const int size : stored_->sizes.back()) unit = std::gcd(unit, size);
    stored_->unit.push_back(std::max(1, unit));
    for (const int size : stored_->sizes.back())
      stored_->units.push_back(size / stored_->unit.back());
    stored_->first_size.push_back(sizes);
    sizes += stored_->sizes.back().size();
  }
  stored_->first_size.push_back(sizes);
  add_options(request, choice, ignore_memory);
  add_crossings(request, choice);
  add_bounds();
  find_ends(request.least_gain);
}

Table Table::on(std::vector<int> devices, int microbatches) const {
  MEDLEY_CHECK(devices.size() == devices_.size() && microbatches <= microbatches_);
  Table table = *this;
  table.devices_ = std::move(devices);
  table.microbatches_ = microbatches;
  return table;
}

Table::Offered Table::options_of(const PipelineRequest& request,
                                 int choice,
                                 bool ignore_memory,
                                 StageRange range) const {
  Offered all;
  const Bytes memory = request.pools[at(range.pool)].memory;
  const bool fills_less = request.microbatches[at(choice)].count <= kManyMicrobatches;
  for (size_t s = 0; s < sizes(range.pool).size(); ++s) {
    range.devices = sizes(range.pool)[s];
    const Nanoseconds sums = request.sums ? request.sums(range) : Nanoseconds{};
    const Nanoseconds least = request.sums_at_least ? request.sums_at_least(range) : Nanoseconds{};
    const Bytes summed = request.summed ? request.summed(range) : Bytes{};
    int32_t index = 0;
    for (const StageOption& o : request.microbatches[at(choice)].options(range)) {
      MEDLEY_CHECK(o.forward.value >= 0 && o.backward.value >= 0 && o.update.value >= 0);
      MEDLEY_CHECK((o.forward + o.backward + o.update) < kLongest);
      all.longest = std::max(all.longest, (o.forward + o.backward).value);
      const int64_t room = ignore_memory ? kNever : room_of(o, memory, microbatches_);
      if (room >= 1 && (ignore_memory || room_of(o, memory - summed, 1) >= 1)) {
        const int64_t time = (o.forward + o.backward).value, weights = o.weights.value;
        all.options.push_back(
            {time,
             o.forward.value,
             (o.update + sums).value,
             fills_less && room == kNever ? std::max(o.forward.value, time - 2 * weights) : time,
             time - weights,
             room,
             least.value,
             (o.update + std::max(Nanoseconds{}, least - o.backward)).value,
             range.end - range.begin,
             index,
             static_cast<int16_t>(range.pool),
             static_cast<int16_t>(s)});
        all.offered.push_back(o);
      }
      ++index;
    }
  }
  drop_dominated(all.options, all.offered);
  return all;
}

// Requests the options of identical stages once.
void Table::add_options(const PipelineRequest& request, int choice, bool ignore_memory) {
  const auto n = at(layers_ + 1);
  const auto first = first_equal(request.microbatches[at(choice)].like, layers_);
  stored_->range_of.assign(n * n, 0);  // range 0 is empty
  stored_->begin_of.assign(stored_->first_size.back(), 0);
  int ranges = 1;
  int64_t longest = 0;
  for (int begin = 0; begin < layers_; ++begin)
    for (int end = begin + 1; end <= layers_; ++end) {
      int& range = stored_->range_of[at(begin) * n + at(end)];
      if (const int like = first[at(begin)][at(end)]; like < begin) {
        range = stored_->range_of[at(like) * n + at(end - begin + like)];
        continue;
      }
      range = ranges++;
      for (int pool = 0; pool < pools(); ++pool) {
        const Offered stages = options_of(request, choice, ignore_memory, {begin, end, pool, 0});
        longest = std::max(longest, stages.longest);
        auto next = stages.options.begin();
        for (size_t s = 0; s < sizes(pool).size(); ++s) {
          stored_->begin_of.push_back(static_cast<int64_t>(stored_->options.size()));
          for (; next != stages.options.end() && next->size == static_cast<int>(s); ++next)
            stored_->options.push_back(*next);
        }
        stored_->offered.insert(
            stored_->offered.end(), stages.offered.begin(), stages.offered.end());
      }
    }
  stored_->begin_of.push_back(static_cast<int64_t>(stored_->options.size()));
  longest_period_ = std::max<int64_t>(1, longest * layers_);
}

void Table::add_crossings(const PipelineRequest& request, int choice) {
  const std::vector<CutBytes>& cuts = request.microbatches[at(choice)].cuts;
  const auto count = at(pools());
  const auto n = at(layers_);
  stored_->crossings.resize(2 * count * count * n);
  for (const PipelinePool& pool : request.pools) stored_->one_port.push_back(pool.one_port);
  stored_->linked.assign(count * count, 0);
  int64_t longest = 0;
  for (size_t from = 0; from < count; ++from)
    for (size_t to = 0; to < count; ++to) {
      const auto &up = request.links[from][to], &down = request.links[to][from];
      stored_->exchanges.push_back(
          exchange_time(up, request.shared).value_or(Nanoseconds{kNever}).value);
      has_exchange_ |= stored_->exchanges.back() > 0;
      if (!up || !down) continue;
      stored_->linked[from * count + to] = 1;
      for (size_t end = 1; end < n; ++end) {
        // BoundaryTimes has one latency: the mean gives the same round trip.
        const BoundaryTimes times{occupied(*up, cuts[end - 1].up),
                                  occupied(*down, cuts[end - 1].down),
                                  {(up->latency + down->latency).value / 2}};
        const size_t own = (from * count + to) * n + end;
        stored_->crossings[own] = crossing_of(times);
        Crossing& back = stored_->crossings[count * count * n + own];
        back =
            crossing_of({times.forward * int64_t{2}, times.backward * int64_t{2}, times.latency});
        back.is_shared = true;
        longest = std::max(longest, back.round_trip);
      }
    }
  longest_period_ += longest * layers_;
}

void Table::add_bounds() {
  for (const Option& o : stored_->options) stored_->steps.push_back(o.time);
  for (const Crossing& c : stored_->crossings) stored_->steps.push_back(c.occupied);
  std::ranges::sort(stored_->steps);
  const auto same = std::ranges::unique(stored_->steps);
  stored_->steps.erase(same.begin(), same.end());
  stored_->least_time.assign(row(pools() - 1, sizes(pools() - 1).size(), 0), kNever);
  stored_->least_from = stored_->least_over = stored_->least_time;
  stored_->least_time_of = stored_->least_stay_of = stored_->least_time;
  stored_->most_room.assign(stored_->least_time.size(), 0);
  stored_->least_fill = stored_->least_stay = stored_->least_in_front = stored_->least_time;
  stored_->has_deferred_weights = std::ranges::any_of(
      stored_->options, [](const Option& option) { return option.stays < option.time; });
  std::vector<std::pair<int, size_t>> all;  // pools and sizes
  for (int pool = 0; pool < pools(); ++pool)
    for (size_t s = 0; s < sizes(pool).size(); ++s) all.emplace_back(pool, s);
  for_each_in_parallel(all.size(), [&](size_t i) { add_bounds(all[i].first, all[i].second); });
  for (const auto& [pool, s] : all)
    for (int end = 1; end <= layers_; ++end)
      for (const Option& option : options(pool, s, 0, end))
        stored_->least_first_update = std::min(stored_->least_first_update, option.update);
  std::vector<int64_t> fills(at(layers_) + 1, kNever), stays = fills;
  std::vector<int64_t>& ups = stored_->least_up = fills;
  fills[0] = stays[0] = ups[0] = 0;
  for (int end = 1; end <= layers_; ++end)
    for (const auto& [pool, s] : all) {
      const int64_t *least_fill = least_fills(pool, s, end), *least = least_stays(pool, s, end);
      for (int begin = 0; begin < end; ++begin) {
        fills[at(end)] = std::min(fills[at(end)], fills[at(begin)] + least_fill[begin]);
        stays[at(end)] = std::min(stays[at(end)], stays[at(begin)] + least[begin]);
        for (const Option& option : options(pool, s, begin, end))
          ups[at(end)] = std::min(ups[at(end)], ups[at(begin)] + option.forward);
      }
    }
  least_sum_ = fills.back();
  least_way_ = stays.back();
}

// Adds bounds of stages of one size.
void Table::add_bounds(int pool, size_t s) {
  for (int begin = 0; begin < layers_; ++begin)
    for (int end = layers_; end > begin; --end) {
      int64_t& fastest = stored_->least_time[row(pool, s, end) + at(begin)];
      int64_t& room = stored_->most_room[row(pool, s, end) + at(begin)];
      int64_t& fill = stored_->least_fill[row(pool, s, end) + at(begin)];
      int64_t& stay = stored_->least_stay[row(pool, s, end) + at(begin)];
      int64_t& front = stored_->least_in_front[row(pool, s, end) + at(begin)];
      for (const Option& option : options(pool, s, begin, end)) {
        fill = std::min(fill, option.fill);
        stay = std::min(stay, option.stays);
        front = std::min(front, in_front(option));
        fastest = std::min(fastest, option.time);
        room = std::max(room, option.room);
      }
      stored_->least_time_of[row(pool, s, begin) + at(end)] = fastest;
      stored_->least_stay_of[row(pool, s, begin) + at(end)] = stay;
      int64_t least = fastest;
      if (end < layers_) least = std::min(least, least_from(pool, s, begin, end + 1));
      stored_->least_from[row(pool, s, begin) + at(end)] = least;
      if (begin > 0) least = std::min(least, least_over(pool, s, begin - 1, end));
      stored_->least_over[row(pool, s, end) + at(begin)] = least;
    }
}

// Finds pools that gain enough by being at both ends: they exchange faster with the last stage than
// any other pool.
void Table::find_ends(Nanoseconds least_gain) {
  for (int last = 0; last < pools(); ++last) {
    int64_t others = kNever;
    for (int first = 0; first < pools(); ++first)
      if (first != last) others = std::min(others, exchange(first, last));
    const bool is_enough = others - exchange(last, last) >= least_gain.value;
    comes_back_.push_back(has_exchange_ && (is_enough || least_gain == Nanoseconds{}));
  }
}

const StageOption& Table::offered(const Option& option) const {
  return stored_->offered[at(index_of(option))];
}

namespace {

// Returns how far one stage reaches within a period, [pool][size][begin].
std::vector<std::vector<std::vector<int>>> far_at(const Table& table, int64_t period) {
  std::vector<std::vector<std::vector<int>>> far(at(table.pools()));
  for (int p = 0; p < table.pools(); ++p)
    for (size_t s = 0; s < table.sizes(p).size(); ++s) {
      auto& row = far[at(p)].emplace_back();
      for (int begin = 0, end = 0; begin < table.layers(); ++begin) {
        end = std::max(end, begin);
        while (end < table.layers() && table.least_over(p, s, begin, end + 1) <= period) ++end;
        row.push_back(end);
      }
      row.push_back(table.layers());
    }
  return far;
}

// Returns whether consecutive stages of each pool, pools in any order, reach the last layer. Before
// them are stages on as many devices again of a pool that may be at both ends.
bool covers_once(const Table& table, int64_t period) {
  const auto far = far_at(table, period);
  const int pools = table.pools();
  const size_t stride = at(table.most_units()) + 1;
  const unsigned all = (1u << pools) - 1;
  std::vector<int> reach((at(all) + 1) * at(pools) * stride, 0);  // [others][pool][devices]
  const auto from = [&](unsigned others, int pool) {
    return reach.data() + (others * at(pools) + at(pool)) * stride;
  };
  const auto fill = [&](unsigned others, int p) {
    int* own = from(others, p);
    for (int d = 1; d <= table.units(p); ++d) {
      own[d] = own[d - 1];
      for (size_t s = 0; s < table.sizes(p).size() && table.units(p, s) <= d; ++s)
        own[d] = std::max(own[d], far[at(p)][s][at(own[d - table.units(p, s)])]);
    }
    return own[table.units(p)];
  };
  int first = 0;
  for (int p = 0; p < pools; ++p)
    if (table.may_come_back(p)) first = std::max(first, fill(0, p));
  bool covers = false;
  for (unsigned others = 0; others <= all; ++others)
    for (int p = 0; p < pools; ++p) {
      if (others >> p & 1u) continue;
      int* own = from(others, p);
      own[0] = first;
      for (int q = 0; q < pools; ++q)
        if (others >> q & 1u)
          own[0] = std::max(own[0], from(others & ~(1u << q), q)[table.units(q)]);
      covers |= fill(others, p) == table.layers();
    }
  return covers;
}

// Returns the same for stages of pools in any order, by device counts of all pools.
bool covers_in_any_order(const Table& table, int64_t period) {
  const auto far = far_at(table, period);
  std::vector<size_t> strides{1};
  for (int p = 0; p < table.pools(); ++p)
    strides.push_back(strides.back() * at(table.units(p) + 1));
  std::vector<int> reach(strides.back(), 0);
  for (size_t used = 1; used < reach.size(); ++used)
    for (int p = 0; p < table.pools(); ++p) {
      const int devices = static_cast<int>(used / strides[at(p)]) % (table.units(p) + 1);
      for (size_t s = 0; s < table.sizes(p).size() && table.units(p, s) <= devices; ++s) {
        const int before = reach[used - at(table.units(p, s)) * strides[at(p)]];
        reach[used] = std::max(reach[used], far[at(p)][s][at(before)]);
      }
    }
  return std::ranges::max(reach) == table.layers();
}

}  // namespace

int64_t least_period(const Table& table, DeviceUse use) {
  const auto covers = [&](int64_t period) {
    return use == DeviceUse::kOnce ? covers_once(table, period)
                                   : covers_in_any_order(table, period);
  };
  int64_t low = 0, high = table.longest_period();
  if (!covers(high)) return kNever;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (covers(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace medley::pipeline
