#include "medley/chains/chain_search.h"

#include <algorithm>
#include <optional>

#include "medley/base/at.h"
#include "medley/chains/chain_ahead.h"
#include "medley/chains/chain_labels.h"

namespace medley::pipeline {
namespace {

// The first limit is a lower bound of the cost times 1 plus this share; each next limit grows the
// share by the factor.
constexpr double kMoreCost = 1.0 / 256;
constexpr int64_t kMoreFactor = 4;

// Lower bounds computed before chains are searched.
struct Ahead {
  Ahead(const Table& table, const ChainSearch& search) {
    if (search.use == DeviceUse::kOnce) once.emplace(table, search);
    if (search.use == DeviceUse::kCounted) counted.emplace(table, search);
    // Under any schedule it also bounds the devices' cost.
    if (search.use == DeviceUse::kAny || (!once && search.any_schedule()))
      paid.emplace(table, search);
  }
  // Returns a lower bound of every chain's cost.
  int64_t whole(const ChainSearch& search) const {
    const auto least = [&](const std::vector<int64_t>& of_last) {
      return search.last_pool < 0 ? std::ranges::min(of_last) : of_last[at(search.last_pool)];
    };
    const int64_t sum = least(once ? once->whole() : counted ? counted->whole() : paid->whole);
    if (!search.any_schedule() || sum == kNever) return sum;
    return paid ? least(paid->whole) : 0;
  }
  std::optional<AheadOnce> once;
  std::optional<AheadCounted> counted;
  std::optional<AheadPaid> paid;
};

// Returns how long a micro-batch may stay from a stage on if all of them fit.
int64_t most_stay(const Table& table, const Option& option, const ChainSearch& search) {
  const int64_t room = table.room(option);
  if (!search.any_schedule())
    return room > kNever / search.longest ? kNever : room * search.longest;
  if (!search.with_r() || room == kNever) return kNever;
  return search.step * room / search.microbatches;
}

// Returns whether gradient sums, which begin at the last backward or later, end in time.
bool has_time_to_sum(const Option& option, const ChainSearch& search) {
  if (!search.any_schedule() || option.sums == 0) return true;
  return (search.microbatches - 1) * option.time + option.forward + option.sums <= search.step;
}

class Search {
 public:
  Search(const Table& table, const ChainSearch& search, const Ahead& ahead);
  Chain run();

 private:
  // A stage in front of later stages.
  struct Step {
    const Option& option;
    int begin;
    int64_t cost, up;  // added to `cost`; and to `end`
    int64_t held;      // t + r
    int64_t most;      // limit of `depth` plus `held`
    int64_t stays;     // added to `depth`, under any schedule
    int64_t after;     // after the last backward: update, or X of a first stage
    Used own;
    size_t place;    // place_of() its devices
    bool is_shared;  // whether later stages use the boundary's port
  };
  // Lower bounds of stages in front of a state.
  struct Least {
    int64_t cost, time;  // kNever: none exist
  };

  std::vector<Bucket>& front(int layer, int pool) { return fronts_[at(layer) * pools_ + at(pool)]; }
  // Returns the front for stages in front on another pool.
  std::vector<Bucket>& left(int layer, int pool) {
    return once_ ? left_[at(layer) * pools_ + at(pool)] : front(layer, pool);
  }
  Used used_by(const Option& option) const {
    if (search_.use == DeviceUse::kAny) return {};
    return {option.pool, table_.units(option.pool, at(option.size))};
  }
  int64_t price_of(const Option& option) const {
    return search_.price(option.pool, table_.sizes(option.pool)[at(option.size)]);
  }
  int64_t cost_over(const Option& option, const Crossing& crossing) const {
    return price_of(option) + (search_.any_schedule() ? 0 : option.fill + crossing.round_trip);
  }
  Least ahead(int layer, int pool, Used used, size_t place, unsigned finished) const;
  int64_t with_after(int layer, int64_t sum) const {
    return layer == 0 || sum == kNever ? sum : sum + after_;
  }
  size_t place_of(int pool, int devices) const {
    return ahead_.counted ? ahead_.counted->place_of(pool, devices) : 0;
  }
  // Returns the pools closed to earlier stages after those of `pool`. These are pools used once,
  // except the last stage's, which first stages may use if the ends exchange gradients.
  unsigned finished_with(const Bucket& behind, int pool) const {
    return once_ && pool != comes_back_ ? behind.finished | 1u << pool : behind.finished;
  }
  // Returns whether messages of a stage on `pool` may share the port of stages after those of
  // `next`. A bound ignores that: the overlap depends on the bytes of both boundaries.
  bool may_share_port(int pool, int next) const {
    return pool != next && !search_.any_schedule() && table_.has_one_port(pool) &&
           (search_.use == DeviceUse::kCounted || pool == comes_back_);
  }
  void add_stages(int layer, int pool);
  void add_last(const Option& option, int begin);
  // `least`: a lower bound of the stages in front of it.
  void add_stage(const Option& option, int begin, int end, int64_t least);
  Step step_over(const Option& option, int begin, const Crossing& crossing) const;
  void add_before(const Step& step, const std::vector<Bucket>& behind, int next, int64_t below);
  void add_before(const Step& step, const Bucket& behind, int next);
  std::optional<Label> extended(const Step& step, const Label& rest) const;
  std::optional<Label> extended_by_any_schedule(const Step& step, const Label& rest) const;
  void add_stages_in_order(int layer, int pool);
  void add_before_in_order(int pool, size_t size, int begin, int end, int64_t below);
  bool can_do(const Option& option) const {
    return option.time <= search_.longest && has_time_to_sum(option, search_);
  }
  bool is_known(int64_t cost, int64_t depth) const;
  bool matters(const Option& option, int begin, const Label& label, const Least& ahead) const;
  static void keep(Making& making, const Label& label);
  void keep_in_order(const Label& label);
  void finish(int layer, int pool);
  void leave(int layer, int pool);
  static void cheapest_first(std::vector<Bucket>& buckets) {
    std::ranges::stable_sort(buckets, {}, &Bucket::cost);
  }
  // Under any schedule, drops parts that the bound excludes.
  void leave_out(Label& label) const {
    if (!search_.with_q()) label.end = 0;
    if (!search_.with_r()) label.depth = 0;
  }
  int64_t cost_of(const Label& label) const {
    return search_.any_schedule() ? label.cost : label.end;
  }

  const Table& table_;
  const ChainSearch& search_;
  const Ahead& ahead_;
  const size_t pools_;
  const bool once_;
  std::vector<int> units_;  // [pool]
  const int comes_back_;    // pool allowed at both ends; -1: none
  const bool in_order_;     // labels differ only in cost and depth
  Used all_;
  size_t all_place_ = 0;
  // Lower bound of the time after the last backward, if there is a stage in front.
  int64_t after_ = 0;
  std::vector<Label> labels_;
  std::vector<std::vector<Bucket>> fronts_, left_;  // [layer][pool]
  Makings made_;                                    // of the current layer and pool
  std::vector<Label> ordered_;                      // the same, by cost
  std::vector<int64_t> least_;  // [layer] cost of chains from there on; kNever: none
};

Search::Search(const Table& table, const ChainSearch& search, const Ahead& ahead)
    : table_(table),
      search_(search),
      ahead_(ahead),
      pools_(at(table.pools())),
      once_(search.use == DeviceUse::kOnce),
      comes_back_(search.last_pool >= 0 && table.may_come_back(search.last_pool) ? search.last_pool
                                                                                 : -1),
      in_order_(search.any_schedule() && !search.with_q() && search.use == DeviceUse::kAny) {
  fronts_.resize(at(table.layers() + 1) * pools_);
  if (once_) left_.resize(fronts_.size());
  least_.assign(at(table.layers() + 1), kNever);
  least_.back() = 0;
  for (int pool = 0; pool < table.pools(); ++pool) {
    units_.push_back(table.units(pool));
    all_ = all_ + Used(pool, units_.back());
    all_place_ += place_of(pool, units_.back());
  }
  if (search.any_schedule()) return;
  int64_t exchange = kNever;
  for (int pool = 0; pool < table.pools(); ++pool)
    exchange =
        std::min(exchange, search.last_pool < 0 ? 0 : table.exchange(pool, search.last_pool));
  after_ = std::max(table.least_first_update(), exchange);
}

// Requires: enough free devices.
Search::Least Search::ahead(int layer, int pool, Used used, size_t place, unsigned finished) const {
  if (once_) {
    const int left = units_[at(pool)] - used.of(pool);
    const int64_t sum = ahead_.once->sum(layer, finished, pool, left);
    if (!search_.any_schedule()) return {with_after(layer, sum), 0};
    return {sum == kNever ? kNever : 0, sum};
  }
  const int64_t sum = ahead_.counted ? ahead_.counted->sum(layer, pool, place) : 0;
  if (!ahead_.paid) return {with_after(layer, sum), 0};
  const size_t state = ahead_.paid->index(layer, pool);
  const int64_t cost = with_after(layer, ahead_.paid->cost[state]);
  if (!ahead_.counted) return {cost, ahead_.paid->time[state]};
  return {sum == kNever ? kNever : cost, sum};
}

// Keeps chains that differ only in cost and depth, by ascending cost.
void Search::keep_in_order(const Label& label) {
  auto last = std::ranges::upper_bound(ordered_, label.cost, {}, &Label::cost);
  auto first = last;
  if (first != ordered_.begin()) {
    const Label& other = *std::prev(first);
    if (other.depth <= label.depth) return;
    if (other.cost == label.cost) --first;
  }
  while (last != ordered_.end() && last->depth >= label.depth) ++last;
  if (first == last) {
    ordered_.insert(first, label);
    return;
  }
  *first = label;
  ordered_.erase(first + 1, last);
}

// Returns whether a known chain is at least as good.
bool Search::is_known(int64_t cost, int64_t depth) const {
  const auto after = std::ranges::upper_bound(ordered_, cost, {}, &Label::cost);
  return after != ordered_.begin() && std::prev(after)->depth <= depth;
}

// Returns whether the chain can end below the limit.
bool Search::matters(const Option& option,
                     int begin,
                     const Label& label,
                     const Least& ahead) const {
  if (ahead.cost == kNever || label.cost + ahead.cost >= search_.below) return false;
  if (!search_.any_schedule()) return label.end + table_.least_up(begin) < search_.below;
  if (search_.with_r() && ahead_.paid &&
      label.depth > ahead_.paid->deepest[ahead_.paid->index(begin, option.pool)])
    return false;
  if (!search_.with_q()) return true;
  const int64_t own = search_.microbatches * option.time;
  const int64_t end =
      begin == 0 ? table_.with_update(own, label.end, option.least_update) : label.end;
  return end + ahead.time <= search_.step;
}

// Keeps labels by ascending cost.
void Search::keep(Making& making, const Label& label) {
  if (making.better && never_worse(*making.better, label)) return;
  std::vector<Label>& labels = making.labels;
  const auto place = std::ranges::upper_bound(labels, label.cost, {}, &Label::cost);
  for (auto other = place; other != labels.begin();)
    if (never_worse(*--other, label)) {
      making.better = *other;
      return;
    }
  const auto worse = std::remove_if(
      place, labels.end(), [&](const Label& other) { return never_worse(label, other); });
  labels.erase(worse, labels.end());
  labels.insert(place, label);
}

void Search::add_last(const Option& option, int begin) {
  if (search_.last_pool >= 0 && option.pool != search_.last_pool) return;
  Label label;
  label.option = static_cast<int32_t>(table_.index_of(option));
  const Used used = used_by(option);
  if (!used.within(all_)) return;
  const int64_t price = price_of(option);
  label.depth = search_.any_schedule() ? option.stays : option.time;
  if (search_.any_schedule()) {
    label.cost = price;
    label.end = search_.microbatches * option.time;
    leave_out(label);
    if (option.time > most_stay(table_, option, search_)) return;  // no room
  } else {
    label.cost = option.time + price;
    label.end = label.cost + option.update;
  }
  const size_t place =
      all_place_ - place_of(option.pool, table_.units(option.pool, at(option.size)));
  if (!matters(option, begin, label, ahead(begin, option.pool, used, place, 0))) return;
  in_order_ ? keep_in_order(label) : keep(made_.of(used, place, 0), label);
}

Search::Step Search::step_over(const Option& option, int begin, const Crossing& crossing) const {
  const int64_t up = option.forward + crossing.up, held = option.time + crossing.round_trip;
  const bool sends = begin == 0 && search_.last_pool >= 0 && !search_.any_schedule();
  const Used own = used_by(option);
  const size_t place = place_of(option.pool, table_.units(option.pool, at(option.size)));
  const int64_t exchange = sends ? table_.exchange(option.pool, search_.last_pool) : 0;
  return {option,
          begin,
          cost_over(option, crossing),
          search_.any_schedule() ? table_.in_front(up, held) : up + price_of(option),
          held,
          most_stay(table_, option, search_),
          option.stays + crossing.round_trip,
          std::max(option.update, exchange),
          own,
          place,
          crossing.is_shared};
}

std::optional<Label> Search::extended_by_any_schedule(const Step& step, const Label& rest) const {
  Label label;
  if (rest.depth + step.held > step.most) return std::nullopt;  // no room
  label.cost = rest.cost + step.cost;
  label.depth = rest.depth + step.stays;
  label.end = std::max(search_.microbatches * step.option.time, rest.end + step.up);
  leave_out(label);
  return label;
}

std::optional<Label> Search::extended(const Step& step, const Label& rest) const {
  if (search_.any_schedule()) return extended_by_any_schedule(step, rest);
  Label label;
  label.depth = rest.depth + step.held;
  if (label.depth > step.most) return std::nullopt;  // no room
  label.cost = rest.cost + step.cost;
  label.end = std::max(label.cost + step.after, rest.end + step.up);
  const int64_t count = (label.depth + search_.longest - 1) / search_.longest;
  label.depth = std::max(label.depth, step.option.time + (count - 1) * search_.longest);
  return label;
}

// Adds stages in front of those that cost less than `below`: of those that share no port with it,
// or of the others.
void Search::add_before(const Step& step,
                        const std::vector<Bucket>& behind,
                        int next,
                        int64_t below) {
  const int pool = step.option.pool;
  const bool may_share = may_share_port(pool, next);
  for (const Bucket& bucket : behind) {
    if (bucket.cost >= below) break;
    if (!may_share || step.is_shared == (bucket.used.of(pool) > 0)) add_before(step, bucket, next);
  }
}

void Search::add_before(const Step& step, const Bucket& behind, int next) {
  const int pool = step.option.pool;
  const Used used = behind.used + step.own;
  if (!used.within(all_)) return;
  const size_t place = behind.place - step.place;
  const unsigned finished = next == pool ? behind.finished : finished_with(behind, next);
  const Least least = ahead(step.begin, pool, used, place, finished);
  if (least.cost == kNever) return;
  const int64_t below = search_.below - least.cost - step.cost;
  if (behind.cost >= below) return;
  Making& making = made_.of(used, place, finished);
  for (int32_t i = behind.begin; i < behind.end; ++i) {
    if (labels_[at(i)].cost >= below) break;
    std::optional<Label> label = extended(step, labels_[at(i)]);
    if (!label || !matters(step.option, step.begin, *label, least)) continue;
    label->behind = i;
    label->option = static_cast<int32_t>(table_.index_of(step.option));
    keep(making, *label);
  }
}

void Search::add_stage(const Option& option, int begin, int end, int64_t least) {
  if (end == table_.layers()) return add_last(option, begin);
  for (int next = 0; next < table_.pools(); ++next) {
    const std::vector<Bucket>& behind = next == option.pool ? front(end, next) : left(end, next);
    if (behind.empty()) continue;
    const Crossing* crossing = table_.crossing(option.pool, next, end);
    if (!crossing || crossing->occupied > search_.longest) continue;
    const int64_t below = search_.below - least - cost_over(option, *crossing);
    if (behind[0].cost >= below) continue;
    add_before(step_over(option, begin, *crossing), behind, next, below);
    if (!may_share_port(option.pool, next)) continue;
    const Crossing& back = *table_.crossing_back(option.pool, next, end);
    if (back.occupied <= search_.longest)
      add_before(step_over(option, begin, back), behind, next, below);
  }
}

// Adds the stages on a pool that begin at `layer`.
void Search::add_stages(int layer, int pool) {
  for (int end = layer + 1; end <= table_.layers(); ++end) {
    bool shorter = false;  // whether stages with later ends may be short enough
    for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
      if (table_.least_from(pool, s, layer, end) > search_.longest) continue;
      shorter = true;
      const int units = table_.units(pool, s);
      if (units > units_[at(pool)]) break;
      const Least least =
          ahead(layer, pool, Used(pool, units), all_place_ - place_of(pool, units), 0);
      const int64_t price = search_.price(pool, table_.sizes(pool)[s]);
      if (least.cost == kNever || least_[at(end)] + price + least.cost >= search_.below) continue;
      for (const Option& option : table_.options(pool, s, layer, end))
        if (can_do(option)) add_stage(option, layer, end, least.cost);
    }
    if (!shorter) break;
  }
}

// Like add_stages(), for chains that differ only in cost and depth. Stages of many layers come
// first and exclude most others.
void Search::add_stages_in_order(int layer, int pool) {
  const int64_t ahead = ahead_.paid->cost[ahead_.paid->index(layer, pool)];
  if (ahead == kNever) return;
  for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
    const int64_t* least_times = table_.least_times_of(pool, s, layer);
    const int64_t below = search_.below - ahead - search_.price(pool, table_.sizes(pool)[s]);
    int end = layer;
    while (end < table_.layers() && table_.least_from(pool, s, layer, end + 1) <= search_.longest)
      ++end;
    for (; end > layer; --end) {
      if (least_times[end] > search_.longest || least_[at(end)] >= below) continue;
      if (end < table_.layers()) {
        add_before_in_order(pool, s, layer, end, below);
        continue;
      }
      for (const Option& option : table_.options(pool, s, layer, end))
        if (can_do(option)) add_last(option, layer);
    }
  }
}

// Later labels are in order of rising cost and falling depth.
void Search::add_before_in_order(int pool, size_t size, int begin, int end, int64_t below) {
  const int64_t paid = search_.price(pool, table_.sizes(pool)[size]);
  const int64_t deepest =
      search_.with_r() ? ahead_.paid->deepest[ahead_.paid->index(begin, pool)] : kNever;
  const int64_t least_stay = search_.with_r() ? table_.least_stays_of(pool, size, begin)[end] : 0;
  for (int next = 0; next < table_.pools(); ++next) {
    if (front(end, next).empty()) continue;
    const Bucket& behind = front(end, next)[0];
    if (behind.cost >= below) continue;
    const Crossing* crossing = table_.crossing(pool, next, end);
    if (!crossing || crossing->occupied > search_.longest) continue;
    const int64_t trip = search_.with_r() ? crossing->round_trip : 0;
    for (int32_t i = behind.begin; i < behind.end && labels_[at(i)].cost < below; ++i) {
      const int64_t cost = labels_[at(i)].cost + paid, depth = labels_[at(i)].depth + trip;
      if (depth + least_stay > deepest || is_known(cost, depth + least_stay)) continue;
      for (const Option& option : table_.options(pool, size, begin, end)) {
        if (!can_do(option) || depth + option.time > most_stay(table_, option, search_)) continue;
        const int64_t own = depth + (search_.with_r() ? option.stays : 0);
        if (own <= deepest)
          keep_in_order({.cost = cost,
                         .depth = own,
                         .behind = i,
                         .option = static_cast<int32_t>(table_.index_of(option))});
      }
    }
  }
}

// Keeps chains that no chain on fewer devices equals or beats.
void Search::finish(int layer, int pool) {
  std::vector<Bucket>& buckets = front(layer, pool);
  std::vector<Bucket> fewer;  // those on at most as many devices
  if (in_order_) made_.of({}, 0, 0).labels = std::move(ordered_);
  ordered_.clear();
  for (Making* making : made_.sorted()) {
    std::ranges::sort(making->labels);
    Bucket bucket{
        making->used, making->place, making->finished, static_cast<int32_t>(labels_.size()), 0, 0};
    const int64_t most = making->labels.back().cost;
    fewer.clear();
    for (const Bucket& other : buckets)
      if (other.cost <= most && other.used.within(bucket.used)) fewer.push_back(other);
    for (const Label& label : making->labels) {
      const bool kept = std::ranges::none_of(fewer, [&](const Bucket& other) {
        for (int32_t i = other.begin; i < other.end && labels_[at(i)].cost <= label.cost; ++i)
          if (never_worse(labels_[at(i)], label)) return true;
        return false;
      });
      if (kept) labels_.push_back(label);
    }
    bucket.end = static_cast<int32_t>(labels_.size());
    if (bucket.begin == bucket.end) continue;
    bucket.cost = labels_[at(bucket.begin)].cost;
    least_[at(layer)] = std::min(least_[at(layer)], bucket.cost);
    buckets.push_back(bucket);
  }
  made_.clear();
  if (once_) leave(layer, pool);
  cheapest_first(buckets);
}

// Drops device counts that cannot matter since no earlier stage returns to the pool. A chain that
// has returned to it stays there.
void Search::leave(int layer, int pool) {
  for (const Bucket& bucket : front(layer, pool)) {
    const bool is_last = pool == comes_back_;
    if (is_last && bucket.finished != 0) continue;
    const int left = is_last ? 0 : units_[at(pool)] - bucket.used.of(pool);
    const Used used = bucket.used + Used(pool, left);
    Making& making = made_.of(used, bucket.place, bucket.finished);
    for (int32_t i = bucket.begin; i < bucket.end; ++i) keep(making, labels_[at(i)]);
  }
  for (Making* making : made_.sorted()) {
    std::ranges::sort(making->labels);
    const auto begin = static_cast<int32_t>(labels_.size());
    labels_.insert(labels_.end(), making->labels.begin(), making->labels.end());
    left(layer, pool)
        .push_back({making->used,
                    making->place,
                    making->finished,
                    begin,
                    static_cast<int32_t>(labels_.size()),
                    labels_[at(begin)].cost});
  }
  made_.clear();
  cheapest_first(left(layer, pool));
}

Chain Search::run() {
  const int last = (table_.layers() - 1) / search_.cut_every * search_.cut_every;
  for (int layer = last; layer >= 0; layer -= search_.cut_every)
    for (int pool = 0; pool < table_.pools(); ++pool) {
      in_order_ ? add_stages_in_order(layer, pool) : add_stages(layer, pool);
      finish(layer, pool);
    }
  Chain chain;
  chain.cost = search_.below;
  int32_t best = -1;
  for (int pool = 0; pool < table_.pools(); ++pool)
    for (const Bucket& bucket : front(0, pool))
      for (int32_t i = bucket.begin; i < bucket.end; ++i)
        if (const int64_t cost = cost_of(labels_[at(i)]); cost < chain.cost) {
          chain.cost = cost;
          best = i;
        }
  for (; best >= 0; best = labels_[at(best)].behind)
    chain.stages.push_back(&table_.option(labels_[at(best)].option));
  return chain;
}

// Raises limits in steps: the cheapest chain costs little more than the lower bound, and a search
// takes longer with more chains below its limit.
Chain search_upwards(const Table& table, ChainSearch search, const Ahead& ahead, double* first) {
  const int64_t below = search.below, sum = ahead.whole(search);
  const int64_t least =
      search.any_schedule() || sum == kNever ? sum : sum + table.least_first_update();
  const auto whole = static_cast<double>(least);
  const double share = std::max(kMoreCost, first ? *first : 0.0);
  if (least >= below) return {};
  // Rising limits gain little if chains are free or pools are used once.
  const bool at_once =
      search.any_schedule() ? !search.prices : search.use == DeviceUse::kOnce && below < kNever;
  for (int64_t more = std::max<int64_t>(1, static_cast<int64_t>(whole * share));;
       more *= kMoreFactor) {
    search.below = at_once ? below : std::min(below, least + more);
    Chain chain = Search(table, search, ahead).run();
    if (!chain.stages.empty() && first && least > 0)
      *first = static_cast<double>(more) / kMoreFactor / whole;
    if (!chain.stages.empty() || search.below == below) return chain;
  }
}

}  // namespace

Chain cheapest_chain(const Table& table, const ChainSearch& search, double* first) {
  const Ahead ahead(table, search);
  bool is_same = search.any_schedule();  // for any pool of the last stage
  for (int pool = 0; pool < table.pools() && search.use == DeviceUse::kOnce; ++pool)
    is_same &= !table.may_come_back(pool);
  if (!table.has_exchange() || search.last_pool >= 0 || is_same)
    return search_upwards(table, search, ahead, first);
  Chain best;
  for (int last = 0; last < table.pools(); ++last) {
    ChainSearch better = search;
    better.below = std::min(search.below, best.cost);
    better.last_pool = last;
    Chain chain = search_upwards(table, better, ahead, first);
    if (!chain.stages.empty() && chain.cost < best.cost) best = std::move(chain);
  }
  return best;
}

}  // namespace medley::pipeline
