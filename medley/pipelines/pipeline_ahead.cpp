#include "medley/pipelines/pipeline_ahead.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>

#include "medley/base/at.h"

namespace medley::pipeline {
namespace {

#ifdef __x86_64__
// Returns how many it did, of whole registers.
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

// Sets each of `to` to what is in `from` and `more`, where that is less.
void take_less(int64_t* to, const int64_t* from, int64_t more, int count) {
  int i = 0;
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) i = take_less_avx2(to, from, more, count);
#endif
  for (; i < count; ++i) to[i] = std::min(to[i], more + from[i]);
}

}  // namespace

Ahead::Ahead(const Table& table, int64_t period, bool any_schedule)
    : table_(table),
      period_(period),
      any_schedule_(any_schedule),
      stride_(at(table.most_units()) + 1) {
  sums_.assign(index(table.layers(), 0, 0), kNever);
  std::fill_n(sums_.begin(), index(std::min(1, table.layers()), 0, 0), 0);
  for (int layer = 1; layer < table.layers(); ++layer) fill(layer);
}

// The fastest of each mesh that end there, and are short enough.
std::vector<Ahead::Stage> Ahead::stages_before(int layer, int pool) const {
  std::vector<Stage> stages;
  for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
    if (table_.units(pool, s) > table_.units(pool)) break;
    const int64_t* least_times = table_.least_times(pool, s, layer);
    const int64_t* least =
        any_schedule_ ? table_.least_in_front(pool, s, layer) : table_.least_fills(pool, s, layer);
    const int64_t* least_overs = table_.least_overs(pool, s, layer);
    for (int begin = layer - 1; begin >= 0; --begin) {
      if (least_overs[begin] > period_) break;
      if (least_times[begin] <= period_)
        stages.push_back({begin, table_.units(pool, s), least[begin]});
    }
  }
  return stages;
}

int64_t Ahead::added_by(int from, int to, int layer) const {
  const Crossing* crossing = table_.crossing(from, to, layer);
  if (!crossing || crossing->occupied > period_) return kNever;
  return any_schedule_ ? table_.in_front(crossing->up, crossing->round_trip) : crossing->round_trip;
}

void Ahead::fill(int layer) {
  const unsigned sets = 1u << table_.pools();
  const auto pools = at(table_.pools());
  std::vector<int64_t> whole(sets * pools, kNever);  // of stages on the first devices of a pool
  for (int pool = 0; pool < table_.pools(); ++pool) {
    const std::vector<Stage> stages = stages_before(layer, pool);
    const int all = table_.units(pool);
    const int64_t same = added_by(pool, pool, layer);
    for (unsigned finished = 0; finished < sets; ++finished) {
      if (finished >> pool & 1u) continue;
      int64_t* to = sums_.data() + index(layer, finished, pool);
      int64_t& least = whole[finished * pools + at(pool)];
      for (const Stage& stage : stages) {
        const int64_t* from = row(stage.begin, finished, pool);
        least = std::min(least, stage.time + from[all - stage.devices]);
        if (same == kNever) continue;
        take_less(to + stage.devices, from, stage.time + same, all - stage.devices + 1);
      }
    }
  }
  for (int pool = 0; pool < table_.pools(); ++pool)
    for (int other = 0; other < table_.pools(); ++other) {
      const int64_t crossing = added_by(other, pool, layer);
      if (other == pool || crossing == kNever) continue;
      for (unsigned finished = 0; finished < sets; ++finished) {
        if (finished >> pool & 1u || finished >> other & 1u) continue;
        const size_t before = (finished | 1u << pool) * pools + at(other);
        int64_t* to = sums_.data() + index(layer, finished, pool);
        for (int left = 0; left <= table_.units(pool); ++left)
          to[left] = std::min(to[left], crossing + whole[before]);
      }
    }
}

}  // namespace medley::pipeline
