#include "medley/pipelines/pipeline_chains.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "medley/base/at.h"
#include "medley/pipelines/pipeline_ahead.h"
#include "medley/schedule/h1f1b.h"

namespace medley::pipeline {
namespace {

struct Label {
  int64_t sum = 0, end = 0, depth = 0;
  int32_t behind = -1;  // label of the stages behind, -1: none
  int32_t option = 0;
};

bool never_worse(const Label& a, const Label& b) {
  return a.sum <= b.sum && a.end <= b.end && a.depth <= b.depth;
}

struct Range {
  int32_t begin = 0, end = 0;
};

class Search {
 public:
  // `ahead`: for the period; null: look at chains that cannot be finished, too.
  Search(const Table& table, const ChainSearch& search, const Ahead* ahead);
  Chain run(int64_t& labels);

 private:
  struct Step {  // a stage in front of what is behind it
    const Option& option;
    int begin, end;
    int64_t sum, up;   // to add to `sum`; and to `end`
    int64_t held;      // t + r, to add to `depth`
    int64_t in_front;  // to `end`, and
    int64_t stays;     // to `depth`, under any schedule
    int64_t grow;      // what a boundary adds to the count
    int64_t exchange;  // X, of a first stage
    int64_t most;      // what `depth` may come to
    int32_t index;
  };

  size_t state(unsigned finished, int pool) const {
    return finished * at(table_.pools()) + at(pool);
  }
  size_t front(int layer, unsigned finished, int pool, int devices) const {
    return (at(layer) * states_ + state(finished, pool)) * stride_ + at(devices);
  }
  Range& closed(int layer, unsigned finished, int pool) {
    return closed_[at(layer) * states_ + state(finished, pool)];
  }
  std::vector<Label>& made(unsigned finished, int devices) {
    return made_[finished * stride_ + at(devices)];
  }
  // What stages in front cost at least; nothing is known if chains that cannot be finished count.
  int64_t ahead(int layer, unsigned finished, int pool, int used) const {
    return ahead_ ? ahead_->sum(layer, finished, pool, table_.units(pool) - used) : 0;
  }
  // [finished] of which there are chains that begin there.
  std::vector<unsigned>& live(int layer, int pool) {
    return live_[at(layer * table_.pools() + pool)];
  }
  void find_most_devices(int layer, int pool);
  void find_behind(int pool, int end);
  void add_stage(const Option& option, int begin, int end);
  void add_to_pool(const Step& step, unsigned finished, int devices);
  void open_pool(const Step& step, unsigned finished, int next, int devices);
  Step step_over(
      const Option& option, int begin, int end, const Crossing& crossing, bool same_pool) const;
  // Of sums of `below` or more nothing comes.
  void extend(const Step& step, int32_t behind, int64_t below, std::vector<Label>& front) const;
  void extend_at_least(const Step& step,
                       int32_t behind,
                       int64_t below,
                       std::vector<Label>& front) const;
  void keep(std::vector<Label>& front, const Label& label) const;
  void finish(int layer, int pool);

  const Table& table_;
  const ChainSearch search_;
  const Ahead* const ahead_;
  const unsigned all_;
  const size_t states_, stride_;
  std::vector<Label> labels_;
  std::vector<Range> fronts_;  // [layer][finished][pool][devices]
  std::vector<int> fewest_;    // [layer][finished][pool]: devices of the first front not empty
  std::vector<int> largest_;   // the last one
  std::vector<Range> closed_;  // [layer][finished][pool], into closed_labels_
  std::vector<int32_t> closed_labels_;
  std::vector<std::vector<unsigned>> live_;  // [layer][pool]
  std::vector<int> most_;                    // [finished], of the pool and layer at hand
  std::vector<std::pair<int, const Crossing*>> behind_;  // pools; of the pool and the end at hand
  std::vector<std::vector<Label>> made_;  // [finished][devices], of the pool and layer at hand
};

Search::Search(const Table& table, const ChainSearch& search, const Ahead* ahead)
    : table_(table),
      search_(search),
      ahead_(ahead),
      all_((1u << table.pools()) - 1),
      states_((at(all_) + 1) * at(table.pools())),
      stride_(at(table.most_units()) + 1) {
  const size_t rows = at(table.layers() + 1) * states_;
  fronts_.resize(rows * stride_);
  fewest_.assign(rows, static_cast<int>(stride_));
  largest_.assign(rows, -1);
  closed_.resize(rows);
  live_.resize(at((table.layers() + 1) * table.pools()));
  most_.resize(all_ + 1);
  made_.resize((at(all_) + 1) * stride_);
}

// Of devices of a pool, the most that may be used behind a layer so that the rest can do what is in
// front of it in time.
void Search::find_most_devices(int layer, int pool) {
  for (unsigned finished = 0; finished <= all_; ++finished) {
    int& most = most_[finished];
    most = table_.units(pool);
    if (finished >> pool & 1u) most = -1;
    while (most >= 0 && ahead(layer, finished, pool, most) >= search_.below) --most;
  }
}

// Where stages of a pool that end there may go on.
void Search::find_behind(int pool, int end) {
  behind_.clear();
  if (end == table_.layers()) return;
  for (int next = 0; next < table_.pools(); ++next) {
    const Crossing* crossing = table_.crossing(pool, next, end);
    if (!live(end, next).empty() && crossing && crossing->occupied <= search_.period)
      behind_.emplace_back(next, crossing);
  }
}

Search::Step Search::step_over(
    const Option& option, int begin, int end, const Crossing& crossing, bool same_pool) const {
  Step step{
      option,
      begin,
      end,
      option.fill + crossing.round_trip,
      option.forward + crossing.up,
      option.time + crossing.round_trip,
      table_.in_front(option.forward + crossing.up, option.time + crossing.round_trip),
      option.stays + crossing.round_trip,
      0,
      begin == 0 && search_.last_pool >= 0 ? table_.exchange(option.pool, search_.last_pool) : 0,
      table_.room(option),
      static_cast<int32_t>(table_.index_of(option))};
  const Nanoseconds period{search_.period};
  switch (table_.rule()) {
    case InFlightRule::kPeriod:
      step.most = step.most > kNever / search_.period ? kNever : step.most * search_.period;
      break;
    case InFlightRule::kIdeal:
      step.grow = ideal_growth({crossing.round_trip}, period);
      break;
    case InFlightRule::kPublished:
      step.grow = published_growth({crossing.up}, period, same_pool);
      break;
  }
  return step;
}

void Search::keep(std::vector<Label>& front, const Label& label) const {
  for (const Label& other : front)
    if (never_worse(other, label)) return;
  std::erase_if(front, [&](const Label& other) { return never_worse(label, other); });
  front.push_back(label);
}

inline void Search::extend(const Step& step,
                           int32_t behind,
                           int64_t below,
                           std::vector<Label>& front) const {
  const Label& rest = labels_[at(behind)];
  Label label;
  if (search_.at_least > 0) return extend_at_least(step, behind, below, front);
  label.sum = rest.sum + step.sum;
  if (label.sum >= below) return;
  const bool by_period = table_.rule() == InFlightRule::kPeriod;
  label.depth = rest.depth + (by_period ? step.held : step.grow);
  if (label.depth > step.most) return;  // no room
  label.end = std::max(label.sum + std::max(step.option.update, step.exchange), rest.end + step.up);
  if (by_period) {
    for (const Label& other : front)
      if (never_worse(other, label)) return;
    const int64_t count = (label.depth + search_.period - 1) / search_.period;
    label.depth = std::max(label.depth, step.option.time + (count - 1) * search_.period);
  }
  label.behind = behind;
  label.option = step.index;
  keep(front, label);
}

void Search::extend_at_least(const Step& step,
                             int32_t behind,
                             int64_t below,
                             std::vector<Label>& front) const {
  const Label& rest = labels_[at(behind)];
  Label label;
  const int64_t own = search_.at_least * step.option.time;
  label.end = std::max(own, rest.end + step.in_front);
  if (step.begin == 0) label.end = table_.with_update(own, label.end, step.option.update);
  label.depth = rest.depth + step.stays;
  if (label.end >= below || rest.depth + step.held > step.most) return;
  label.behind = behind;
  label.option = step.index;
  keep(front, label);
}

void Search::add_stage(const Option& option, int begin, int end) {
  const int pool = option.pool;
  const int devices = table_.units(pool, at(option.size));
  if (end == table_.layers()) {
    if (search_.last_pool >= 0 && pool != search_.last_pool) return;
    Label label{option.time,
                option.time + option.update,
                table_.rule() == InFlightRule::kPeriod ? option.time : 1,
                -1,
                static_cast<int32_t>(table_.index_of(option))};
    if (search_.at_least > 0) {
      label.sum = 0;
      label.depth = option.stays;
      label.end = search_.at_least * option.time + (begin == 0 ? option.update : 0);
    }
    if (devices <= most_[0]) keep(made(0, devices), label);
    return;
  }
  for (const auto& [next, crossing] : behind_) {
    const Step step = step_over(option, begin, end, *crossing, pool == next);
    for (const unsigned finished : live(end, next)) {
      if (next == pool)
        add_to_pool(step, finished, devices);
      else if (!(finished >> pool & 1u))
        open_pool(step, finished, next, devices);
    }
  }
}

// In front of stages on the same pool.
void Search::add_to_pool(const Step& step, unsigned finished, int devices) {
  const int pool = step.option.pool;
  const size_t row = at(step.end) * states_ + state(finished, pool);
  const int most = std::min(most_[finished] - devices, largest_[row]);
  for (int used = fewest_[row]; used <= most; ++used) {
    const Range range = fronts_[front(step.end, finished, pool, used)];
    if (range.begin == range.end) continue;
    const int64_t below = search_.below - ahead(step.begin, finished, pool, used + devices);
    for (int32_t i = range.begin; i < range.end; ++i)
      extend(step, i, below, made(finished, used + devices));
  }
}

// In front of stages on another pool, which is finished then.
void Search::open_pool(const Step& step, unsigned finished, int next, int devices) {
  const unsigned now = finished | 1u << next;
  if (devices > most_[now]) return;
  const Range range = closed(step.end, finished, next);
  const int64_t below = search_.below - ahead(step.begin, now, step.option.pool, devices);
  for (int32_t i = range.begin; i < range.end; ++i)
    extend(step, closed_labels_[at(i)], below, made(now, devices));
}

// Keeps what no chain on fewer devices is as good as.
void Search::finish(int layer, int pool) {
  std::vector<Label> best;
  std::vector<int32_t> ids;
  for (unsigned finished = 0; finished <= all_; ++finished) {
    if (finished >> pool & 1u) continue;
    best.clear(), ids.clear();
    const size_t row = at(layer) * states_ + state(finished, pool);
    for (int used = 1; used <= table_.units(pool); ++used) {
      std::vector<Label>& labels = made(finished, used);
      Range& range = fronts_[front(layer, finished, pool, used)];
      range.begin = static_cast<int32_t>(labels_.size());
      const size_t fewer = best.size();
      for (const Label& label : labels) {
        bool kept = true;
        for (size_t i = 0; i < fewer && kept; ++i) kept = !never_worse(best[i], label);
        if (!kept) continue;
        best.push_back(label);
        ids.push_back(static_cast<int32_t>(labels_.size()));
        labels_.push_back(label);
      }
      labels.clear();
      range.end = static_cast<int32_t>(labels_.size());
      if (range.begin == range.end) continue;
      fewest_[row] = std::min(fewest_[row], used);
      largest_[row] = used;
    }
    Range& range = closed(layer, finished, pool);
    range.begin = static_cast<int32_t>(closed_labels_.size());
    for (size_t i = 0; i < best.size(); ++i) {
      bool kept = true;
      for (size_t j = i + 1; j < best.size() && kept; ++j) kept = !never_worse(best[j], best[i]);
      if (kept) closed_labels_.push_back(ids[i]);
    }
    range.end = static_cast<int32_t>(closed_labels_.size());
    if (!best.empty()) live(layer, pool).push_back(finished);
  }
}

Chain Search::run(int64_t& labels) {
  for (int layer = table_.layers() - 1; layer >= 0; --layer)
    for (int pool = 0; pool < table_.pools(); ++pool) {
      find_most_devices(layer, pool);
      for (int end = layer + 1; end <= table_.layers(); ++end) {
        find_behind(pool, end);
        bool shorter = false;  // whether stages that end later may be short enough
        for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
          if (table_.least_from(pool, s, layer, end) > search_.period) continue;
          shorter = true;
          if (end < table_.layers() && behind_.empty()) break;
          for (const Option& option : table_.options(pool, s, layer, end))
            if (option.time <= search_.period) add_stage(option, layer, end);
        }
        if (!shorter) break;
      }
      finish(layer, pool);
    }
  labels += static_cast<int64_t>(labels_.size());
  int32_t best = -1;
  Chain chain;
  for (unsigned finished = 0; finished <= all_; ++finished)
    for (int pool = 0; pool < table_.pools(); ++pool) {
      const Range range = closed(0, finished, pool);
      for (int32_t i = range.begin; i < range.end; ++i) {
        const int32_t id = closed_labels_[at(i)];
        const int64_t cost = labels_[at(id)].end;
        if (cost >= std::min(chain.cost, search_.below)) continue;
        chain.cost = cost;
        best = id;
      }
    }
  for (; best >= 0; best = labels_[at(best)].behind)
    chain.stages.push_back(&table_.option(labels_[at(best)].option));
  return chain;
}

}  // namespace

Chain cheapest_chain(const Table& table, const ChainSearch& search, int64_t& labels) {
  std::optional<Ahead> computed;
  if (search.pruned) computed.emplace(table, search.period, search.at_least > 0);
  const Ahead* ahead = computed ? &*computed : nullptr;
  if (!table.has_exchange() || search.last_pool >= 0)
    return Search(table, search, ahead).run(labels);
  Chain best;
  for (int last = 0; last < table.pools(); ++last) {
    ChainSearch better = search;
    better.below = std::min(search.below, best.cost);
    better.last_pool = last;
    Chain chain = Search(table, better, ahead).run(labels);
    if (chain.cost < best.cost) best = std::move(chain);
  }
  return best;
}

}  // namespace medley::pipeline
