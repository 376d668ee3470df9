#include "medley/chains/chain_ahead.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>

namespace medley::pipeline {
namespace {

#ifdef __x86_64__
// Returns the number of processed elements, a multiple of a register.
[[gnu::target("avx2")]] int take_less_avx2(int64_t* to,
                                           const int64_t* from,
                                           int64_t more,
                                           int count) {
  const __m256i add = _mm256_set1_epi64x(more);
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    const auto* other = reinterpret_cast<const __m256i*>(from + i);
    auto* own = reinterpret_cast<__m256i*>(to + i);
    const __m256i sum = _mm256_add_epi64(_mm256_loadu_si256(other), add);
    const __m256i before = _mm256_loadu_si256(own);
    const __m256i is_less = _mm256_cmpgt_epi64(before, sum);
    _mm256_storeu_si256(own, _mm256_blendv_epi8(before, sum, is_less));
  }
  return i;
}
#endif

// Sets each of `to` to the minimum of itself and `from` plus `more`.
void take_less(int64_t* to, const int64_t* from, int64_t more, int count) {
  int i = 0;
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) i = take_less_avx2(to, from, more, count);
#endif
  for (; i < count; ++i) to[i] = std::min(to[i], more + from[i]);
}

}  // namespace

AheadPaid::AheadPaid(const Table& table, const ChainSearch& search) : pools(at(table.pools())) {
  cost.assign(at(table.layers()) * pools, kNever);
  time = cost;
  deepest.assign(cost.size(), -1);
  std::fill_n(deepest.begin(), pools, kNever);
  std::fill_n(cost.begin(), pools, 0);
  std::fill_n(time.begin(), pools, 0);
  for (int layer = 1; layer <= table.layers(); ++layer)
    for (int pool = 0; pool < table.pools(); ++pool) {
      const Least least = least_before(table, search, layer, pool);
      if (layer == table.layers()) {
        whole.push_back(least.cost);
        continue;
      }
      if (least.cost == kNever) continue;
      for (int next = 0; next < table.pools(); ++next) {
        const Crossing* crossing = table.crossing(pool, next, layer);
        if (!crossing || crossing->occupied > search.longest) continue;
        const int64_t trip = crossing->round_trip;
        const size_t to = index(layer, next);
        cost[to] = std::min(cost[to], least.cost + (search.any_schedule() ? 0 : trip));
        time[to] = std::min(time[to], least.time + table.in_front(crossing->up, trip));
        deepest[to] = std::max(deepest[to], least.depth - trip);
      }
    }
}

// Returns the least over stages on a pool that end at `layer`, with those in front of them.
AheadPaid::Least AheadPaid::least_before(const Table& table,
                                         const ChainSearch& search,
                                         int layer,
                                         int pool) const {
  Least least;
  for (size_t s = 0; s < table.sizes(pool).size(); ++s) {
    const int64_t price = search.price(pool, table.sizes(pool)[s]);
    const int64_t* least_times = table.least_times(pool, s, layer);
    const int64_t* least_fills = table.least_fills(pool, s, layer);
    const int64_t* least_stays = table.least_stays(pool, s, layer);
    const int64_t* in_front = table.least_in_front(pool, s, layer);
    const int64_t* least_overs = table.least_overs(pool, s, layer);
    const int64_t* most_rooms = table.most_rooms(pool, s, layer);
    for (int begin = layer - 1; begin >= 0; --begin) {
      if (least_overs[begin] > search.longest) break;
      const size_t before = index(begin, pool);
      if (least_times[begin] > search.longest || cost[before] == kNever) continue;
      const int64_t paid = search.any_schedule() ? price : price + least_fills[begin];
      least.cost = std::min(least.cost, cost[before] + paid);
      least.time = std::min(least.time, time[before] + in_front[begin]);
      if (!search.any_schedule() || !search.with_r()) continue;
      int64_t most = deepest[before] - least_stays[begin];
      if (most_rooms[begin] != kNever)
        most = std::min(most, (search.longest + 1) * most_rooms[begin] - least_times[begin]);
      least.depth = std::max(least.depth, most);
    }
  }
  return least;
}

std::vector<StageAhead> stages_before(const Table& table,
                                      const ChainSearch& search,
                                      int layer,
                                      int pool) {
  std::vector<StageAhead> stages;
  for (size_t s = 0; s < table.sizes(pool).size(); ++s) {
    const int devices = table.units(pool, s);
    if (devices > table.units(pool)) break;
    const int64_t* least_times = table.least_times(pool, s, layer);
    const int64_t* least = search.any_schedule() ? table.least_in_front(pool, s, layer)
                                                 : table.least_fills(pool, s, layer);
    const int64_t* least_overs = table.least_overs(pool, s, layer);
    const int64_t paid = search.any_schedule() ? 0 : search.price(pool, table.sizes(pool)[s]);
    for (int begin = layer - 1; begin >= 0; --begin) {
      if (least_overs[begin] > search.longest) break;
      if (least_times[begin] <= search.longest)
        stages.push_back({begin, devices, least[begin] + paid});
    }
  }
  return stages;
}

int64_t added_by_crossing(
    const Table& table, const ChainSearch& search, int from, int to, int layer) {
  const Crossing* crossing = table.crossing(from, to, layer);
  if (!crossing || crossing->occupied > search.longest) return kNever;
  return search.any_schedule() ? table.in_front(crossing->up, crossing->round_trip)
                               : crossing->round_trip;
}

AheadCounted::AheadCounted(const Table& table, const ChainSearch& search)
    : table_(table), search_(search), strides_{1} {
  for (int pool = 0; pool < table.pools(); ++pool)
    strides_.push_back(strides_.back() * at(table.units(pool) + 1));
  const size_t places = strides_.back(), row_size = at(table.pools()) * places;
  sums_.assign(at(table.layers()) * row_size, kNever);
  std::fill_n(sums_.begin(), row_size, 0);
  std::vector<int64_t> least(places);
  for (int layer = 1; layer <= table.layers(); ++layer)
    for (int pool = 0; pool < table.pools(); ++pool) {
      std::ranges::fill(least, kNever);
      add(layer, pool, least);
      if (layer == table.layers()) {
        whole_.push_back(least.back());
        continue;
      }
      for (int next = 0; next < table.pools(); ++next) {
        const int64_t crossing = added_by_crossing(table, search, pool, next, layer);
        if (crossing == kNever) continue;
        take_less(
            sums_.data() + index(layer, next), least.data(), crossing, static_cast<int>(places));
      }
    }
}

void AheadCounted::add(int layer, int pool, std::vector<int64_t>& least) const {
  const size_t stride = strides_[at(pool)], block = strides_[at(pool) + 1];
  for (const StageAhead& stage : stages_before(table_, search_, layer, pool)) {
    const int64_t* from = sums_.data() + index(stage.begin, pool);
    const size_t used = at(stage.devices) * stride;
    for (size_t first = 0; first < least.size(); first += block)
      take_less(
          least.data() + first + used, from + first, stage.added, static_cast<int>(block - used));
  }
}

AheadOnce::AheadOnce(const Table& table, const ChainSearch& search)
    : table_(table), search_(search), stride_(at(table.most_units()) + 1) {
  sums_.assign(index(table.layers(), 0, 0), kNever);
  std::fill_n(sums_.begin(), index(std::min(1, table.layers()), 0, 0), 0);
  for (int layer = 1; layer < table.layers(); ++layer) fill(layer);
  for (int pool = 0; pool < table.pools(); ++pool) {
    int64_t& least = whole_.emplace_back(kNever);
    for (const StageAhead& stage : stages_before(table, search, table.layers(), pool))
      least = std::min(least,
                       stage.added + row(stage.begin, 0, pool)[table.units(pool) - stage.devices]);
  }
}

void AheadOnce::fill(int layer) {
  const unsigned sets = 1u << table_.pools();
  const auto pools = at(table_.pools());
  std::vector<int64_t> whole(sets * pools, kNever);  // only on the first devices of a pool
  for (int pool = 0; pool < table_.pools(); ++pool) {
    const std::vector<StageAhead> stages = stages_before(table_, search_, layer, pool);
    const int all = table_.units(pool);
    const int64_t same = added_by_crossing(table_, search_, pool, pool, layer);
    for (unsigned finished = 0; finished < sets; ++finished) {
      if (finished >> pool & 1u) continue;
      int64_t* to = sums_.data() + index(layer, finished, pool);
      int64_t& least = whole[finished * pools + at(pool)];
      for (const StageAhead& stage : stages) {
        const int64_t* from = row(stage.begin, finished, pool);
        least = std::min(least, stage.added + from[all - stage.devices]);
        if (same == kNever) continue;
        take_less(to + stage.devices, from, stage.added + same, all - stage.devices + 1);
      }
    }
  }
  for (int pool = 0; pool < table_.pools(); ++pool)
    for (int other = 0; other < table_.pools(); ++other) {
      const int64_t crossing = added_by_crossing(table_, search_, other, pool, layer);
      if (other == pool || crossing == kNever) continue;
      for (unsigned finished = 0; finished < sets; ++finished) {
        if (finished >> pool & 1u || finished >> other & 1u) continue;
        const bool comes_back = finished == 0 && table_.may_come_back(pool);
        const size_t before = (comes_back ? 0 : finished | 1u << pool) * pools + at(other);
        int64_t* to = sums_.data() + index(layer, finished, pool);
        for (int left = 0; left <= table_.units(pool); ++left)
          to[left] = std::min(to[left], crossing + whole[before]);
      }
    }
}

}  // namespace medley::pipeline
