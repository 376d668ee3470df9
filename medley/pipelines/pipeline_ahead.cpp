#include "medley/pipelines/pipeline_ahead.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley::pipeline {

Ahead::Ahead(const Table& table, int64_t period)
    : table_(table), period_(period), stride_(at(table.most_devices()) + 1) {
  sums_.assign(index(table.layers(), 0, 0), kNever);
  std::fill_n(sums_.begin(), index(std::min(1, table.layers()), 0, 0), 0);
  for (int layer = 1; layer < table.layers(); ++layer) fill(layer);
}

// The fastest of each mesh that end there, and are short enough.
std::vector<Ahead::Stage> Ahead::stages_before(int layer, int pool) const {
  std::vector<Stage> stages;
  for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
    if (table_.sizes(pool)[s] > table_.devices(pool)) break;
    for (int begin = layer - 1; begin >= 0; --begin) {
      if (table_.least_over(pool, s, begin, layer) > period_) break;
      const int64_t least = table_.least_time(pool, s, begin, layer);
      if (least <= period_) stages.push_back({begin, table_.sizes(pool)[s], least});
    }
  }
  return stages;
}

int64_t Ahead::round_trip(int from, int to, int layer) const {
  const Crossing* crossing = table_.crossing(from, to, layer);
  return crossing && crossing->occupied <= period_ ? crossing->round_trip : kNever;
}

void Ahead::fill(int layer) {
  const unsigned sets = 1u << table_.pools();
  const auto pools = at(table_.pools());
  std::vector<int64_t> whole(sets * pools, kNever);  // of stages on the first devices of a pool
  for (int pool = 0; pool < table_.pools(); ++pool) {
    const std::vector<Stage> stages = stages_before(layer, pool);
    const int all = table_.devices(pool);
    const int64_t same = round_trip(pool, pool, layer);
    for (unsigned finished = 0; finished < sets; ++finished) {
      if (finished >> pool & 1u) continue;
      int64_t* to = sums_.data() + index(layer, finished, pool);
      int64_t& least = whole[finished * pools + at(pool)];
      for (const Stage& stage : stages) {
        const int64_t* from = row(stage.begin, finished, pool);
        least = std::min(least, stage.time + from[all - stage.devices]);
        if (same == kNever) continue;
        const int64_t time = stage.time + same;
        for (int left = stage.devices; left <= all; ++left)
          to[left] = std::min(to[left], time + from[left - stage.devices]);
      }
    }
  }
  for (int pool = 0; pool < table_.pools(); ++pool)
    for (int other = 0; other < table_.pools(); ++other) {
      const int64_t crossing = round_trip(other, pool, layer);
      if (other == pool || crossing == kNever) continue;
      for (unsigned finished = 0; finished < sets; ++finished) {
        if (finished >> pool & 1u || finished >> other & 1u) continue;
        const size_t before = (finished | 1u << pool) * pools + at(other);
        int64_t* to = sums_.data() + index(layer, finished, pool);
        for (int left = 0; left <= table_.devices(pool); ++left)
          to[left] = std::min(to[left], crossing + whole[before]);
      }
    }
}

}  // namespace medley::pipeline
