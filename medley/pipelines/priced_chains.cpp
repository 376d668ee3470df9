#include "medley/pipelines/priced_chains.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/pipelines/pipeline_settle.h"

namespace medley {
namespace {

using namespace pipeline;

// Of what chains cost at least: how much more is tried first, and how that grows.
constexpr double kMoreCost = 1.0 / 256;
constexpr int64_t kMoreFactor = 4;

struct PricedSearch {
  const std::vector<int64_t>& prices;
  bool counted = false;
  int64_t below = 0;
  int64_t longest = 0;       // of a stage and of a transfer
  int64_t microbatches = 0;  // under any schedule; 0: at the period `longest`
  int64_t step = 0;
  Closeness closeness = Closeness::kClose;
  bool any_schedule() const { return microbatches > 0; }
  bool with_q() const { return closeness == Closeness::kClose; }
  bool with_r() const { return closeness != Closeness::kRough; }
};

// Devices of the first pools, so many as fit into a word, counted side by side.
class Counts {
 public:
  static constexpr int kBits = 16, kPools = kMostCountedPools;
  static uint64_t of(int pool, int devices) {
    return pool < kPools ? static_cast<uint64_t>(devices) << (pool * kBits) : 0;
  }
  static bool within(uint64_t few, uint64_t most) {
    return (((most | kHighBits) - few) & kHighBits) == kHighBits;
  }

 private:
  static constexpr uint64_t kHighBits = 0x8000800080008000;
};

// What stages with layers [0, layer) in front of a stage on a pool cost and take at least.
struct Ahead {
  Ahead(const Table& table, const PricedSearch& search);
  size_t index(int layer, int pool) const { return at(layer) * pools + at(pool); }

  const size_t pools;
  std::vector<int64_t> cost, time;  // kNever: there are none
  // Under any schedule, of R behind such stages: with more of it none has room, even where the
  // fastest of a stage has as much as any.
  std::vector<int64_t> deepest;
  int64_t whole = kNever;  // cost of a chain
};

Ahead::Ahead(const Table& table, const PricedSearch& search) : pools(at(table.pools())) {
  cost.assign(at(table.layers()) * pools, kNever);
  time = cost;
  deepest.assign(cost.size(), -1);
  std::fill_n(deepest.begin(), pools, kNever);
  std::fill_n(cost.begin(), pools, 0);
  std::fill_n(time.begin(), pools, 0);
  for (int layer = 1; layer <= table.layers(); ++layer)
    for (int pool = 0; pool < table.pools(); ++pool) {
      int64_t least_cost = kNever, least_time = kNever, most_depth = -1;
      for (size_t s = 0; s < table.sizes(pool).size(); ++s) {
        const int64_t price = search.prices[at(pool)] * table.sizes(pool)[s];
        const int64_t* least_times = table.least_times(pool, s, layer);
        const int64_t* least_fills = table.least_fills(pool, s, layer);
        const int64_t* least_stays = table.least_stays(pool, s, layer);
        const int64_t* in_front = table.least_in_front(pool, s, layer);
        const int64_t* least_overs = table.least_overs(pool, s, layer);
        const int64_t* most_rooms = table.most_rooms(pool, s, layer);
        for (int begin = layer - 1; begin >= 0; --begin) {
          if (least_overs[begin] > search.longest) break;
          if (least_times[begin] > search.longest || cost[index(begin, pool)] == kNever) continue;
          const int64_t fill = least_fills[begin];
          const int64_t paid = search.any_schedule() ? price : price + fill;
          least_cost = std::min(least_cost, cost[index(begin, pool)] + paid);
          least_time = std::min(least_time, time[index(begin, pool)] + in_front[begin]);
          if (!search.any_schedule() || !search.with_r()) continue;
          int64_t most = deepest[index(begin, pool)] - least_stays[begin];
          if (most_rooms[begin] != kNever)
            most = std::min(most, (search.longest + 1) * most_rooms[begin] - least_times[begin]);
          most_depth = std::max(most_depth, most);
        }
      }
      if (layer == table.layers()) whole = std::min(whole, least_cost);
      if (least_cost == kNever || layer == table.layers()) continue;
      for (int next = 0; next < table.pools(); ++next) {
        const Crossing* crossing = table.crossing(pool, next, layer);
        if (!crossing || crossing->occupied > search.longest) continue;
        const int64_t trip = crossing->round_trip;
        int64_t& to = cost[index(layer, next)];
        to = std::min(to, least_cost + (search.any_schedule() ? 0 : trip));
        int64_t& arrives = time[index(layer, next)];
        arrives = std::min(arrives, least_time + table.in_front(crossing->up, trip));
        int64_t& depth = deepest[index(layer, next)];
        depth = std::max(depth, most_depth - trip);
      }
    }
}

struct Label {
  int64_t cost = 0, end = 0, depth = 0;
  uint64_t used = 0;
  int32_t behind = -1;  // label of the stages behind; -1: none
  int32_t option = 0;
};

bool never_worse(const Label& a, const Label& b) {
  return a.cost <= b.cost && a.end <= b.end && a.depth <= b.depth && Counts::within(a.used, b.used);
}

struct Range {
  int32_t begin = 0, end = 0;
};

// Whether the sums of gradients, which begin with the last backward at the earliest, are over in
// time.
bool has_time_to_sum(const Option& option, const PricedSearch& search) {
  if (!search.any_schedule() || option.sums == 0) return true;
  return (search.microbatches - 1) * option.time + option.forward + option.sums <= search.step;
}

class Search {
 public:
  Search(const Table& table, const PricedSearch& search, const Ahead& ahead)
      : table_(table),
        search_(search),
        ahead_(ahead),
        in_order_(search.any_schedule() && !search.with_q() && !search.counted) {
    fronts_.resize(at(table.layers() + 1) * at(table.pools()));
    least_.assign(at(table.layers() + 1), kNever);
    least_.back() = 0;
    for (int pool = 0; pool < table.pools(); ++pool) all_ += Counts::of(pool, table.devices(pool));
  }
  Chain run();

 private:
  Range& front(int layer, int pool) { return fronts_[at(layer * table_.pools() + pool)]; }
  int64_t price(int pool, size_t size) const {
    return search_.prices[at(pool)] * table_.sizes(pool)[size];
  }
  int64_t price(const Option& option) const { return price(option.pool, at(option.size)); }
  int devices(const Option& option) const { return table_.sizes(option.pool)[at(option.size)]; }
  uint64_t count(const Option& option) const {
    return search_.counted ? Counts::of(option.pool, devices(option)) : 0;
  }
  void add_stages(int layer, int pool);
  void add_stage(const Option& option, int begin, int end);
  void add_last(const Option& option, int begin);
  void add_before(const Option& option, int begin, const Crossing& crossing, const Range& behind);
  void add_stages_in_order(int layer, int pool);
  void add_before_in_order(int pool, size_t size, int begin, int end, int64_t below);
  bool can_do(const Option& option) const {
    return option.time <= search_.longest && has_time_to_sum(option, search_);
  }
  bool is_known(int64_t cost, int64_t depth) const;
  bool matters(const Option& option, int begin, const Label& label) const;
  void keep(const Label& label);
  void keep_in_order(const Label& label);
  // Under any schedule, what the bound is without.
  void leave_out(Label& label) const {
    if (!search_.with_q()) label.end = 0;
    if (!search_.with_r()) label.depth = 0;
  }

  const Table& table_;
  const PricedSearch& search_;
  const Ahead& ahead_;
  const bool in_order_;  // chains that are kept: they differ in cost and depth only
  uint64_t all_ = 0;
  std::vector<Label> labels_;
  std::vector<Range> fronts_;   // [layer][pool]
  std::vector<Label> made_;     // of the layer and pool at hand
  std::vector<int64_t> least_;  // [layer] cost of chains from there on; kNever: none matter
};

// How long a micro-batch may stay from a stage on, so that there is room for all of them.
int64_t most_stay(const Option& option, const PricedSearch& search) {
  if (!search.with_r() || option.room == kNever) return kNever;
  return search.step * option.room / search.microbatches;
}

// Of chains that differ in cost and depth only, in order of cost.
void Search::keep_in_order(const Label& label) {
  auto last = std::ranges::upper_bound(made_, label.cost, {}, &Label::cost);
  auto first = last;
  if (first != made_.begin()) {
    const Label& other = *std::prev(first);
    if (other.depth <= label.depth) return;
    if (other.cost == label.cost) --first;
  }
  while (last != made_.end() && last->depth >= label.depth) ++last;
  if (first == last) {
    made_.insert(first, label);
    return;
  }
  *first = label;
  made_.erase(first + 1, last);
}

// Whether a chain is at least as good.
bool Search::is_known(int64_t cost, int64_t depth) const {
  const auto after = std::ranges::upper_bound(made_, cost, {}, &Label::cost);
  return after != made_.begin() && std::prev(after)->depth <= depth;
}

// Whether the chain can be finished below the limit.
bool Search::matters(const Option& option, int begin, const Label& label) const {
  const size_t state = ahead_.index(begin, option.pool);
  if (ahead_.cost[state] == kNever || label.cost + ahead_.cost[state] >= search_.below)
    return false;
  if (!search_.any_schedule()) return true;
  if (search_.with_r() && label.depth > ahead_.deepest[state]) return false;
  if (!search_.with_q()) return true;
  const int64_t own = search_.microbatches * option.time;
  const int64_t end =
      begin == 0 ? table_.with_update(own, label.end, option.least_update) : label.end;
  return end + ahead_.time[state] <= search_.step;
}

void Search::keep(const Label& label) {
  if (in_order_) return keep_in_order(label);
  for (const Label& other : made_)
    if (never_worse(other, label)) return;
  std::erase_if(made_, [&](const Label& other) { return never_worse(label, other); });
  made_.push_back(label);
}

void Search::add_last(const Option& option, int begin) {
  Label label;
  label.option = static_cast<int32_t>(table_.index_of(option));
  label.used = count(option);
  if (!Counts::within(label.used, all_)) return;
  label.depth = search_.any_schedule() ? option.stays : option.time;
  if (search_.any_schedule()) {
    label.cost = price(option);
    label.end = search_.microbatches * option.time;
    leave_out(label);
    if (option.time > most_stay(option, search_)) return;  // no room
  } else {
    label.cost = option.time + price(option);
    label.end = label.cost + option.update;
  }
  if (matters(option, begin, label)) keep(label);
}

void Search::add_before(const Option& option,
                        int begin,
                        const Crossing& crossing,
                        const Range& behind) {
  const int64_t paid = price(option), trip = crossing.round_trip;
  const int64_t in_front = table_.in_front(option.forward + crossing.up, option.time + trip);
  const uint64_t own = count(option);
  const int64_t period = search_.longest;
  const int64_t room = table_.room(option);
  const int64_t most = search_.any_schedule()   ? most_stay(option, search_)
                       : room > kNever / period ? kNever
                                                : room * period;
  for (int32_t i = behind.begin; i < behind.end; ++i) {
    const Label& rest = labels_[at(i)];
    Label label;
    label.used = rest.used + own;
    if (!Counts::within(label.used, all_)) continue;
    label.behind = i;
    label.option = static_cast<int32_t>(table_.index_of(option));
    label.depth = rest.depth + option.time + trip;
    if (label.depth > most) continue;  // no room
    if (search_.any_schedule()) {
      label.depth = rest.depth + option.stays + trip;
      label.cost = rest.cost + paid;
      label.end = std::max(search_.microbatches * option.time, rest.end + in_front);
      leave_out(label);
    } else {
      label.cost = rest.cost + option.fill + trip + paid;
      label.end =
          std::max(label.cost + option.update, rest.end + option.forward + crossing.up + paid);
      const int64_t count = (label.depth + period - 1) / period;
      label.depth = std::max(label.depth, option.time + (count - 1) * period);
    }
    if (matters(option, begin, label)) keep(label);
  }
}

void Search::add_stage(const Option& option, int begin, int end) {
  if (end == table_.layers()) return add_last(option, begin);
  for (int next = 0; next < table_.pools(); ++next) {
    const Range behind = front(end, next);
    if (behind.begin == behind.end) continue;
    const Crossing* crossing = table_.crossing(option.pool, next, end);
    if (crossing && crossing->occupied <= search_.longest)
      add_before(option, begin, *crossing, behind);
  }
}

// Adds the stages from `layer` on that are on a pool.
void Search::add_stages(int layer, int pool) {
  const int64_t ahead = ahead_.cost[ahead_.index(layer, pool)];
  if (ahead == kNever) return;
  for (int end = layer + 1; end <= table_.layers(); ++end) {
    bool shorter = false;  // whether stages that end later may be short enough
    for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
      if (table_.least_from(pool, s, layer, end) > search_.longest) continue;
      shorter = true;
      if (least_[at(end)] + price(pool, s) + ahead >= search_.below) continue;
      for (const Option& option : table_.options(pool, s, layer, end))
        if (can_do(option)) add_stage(option, layer, end);
    }
    if (!shorter) break;
  }
}

// The same where chains differ in cost and depth only: stages of many layers first, which leave few
// others to be looked at.
void Search::add_stages_in_order(int layer, int pool) {
  const int64_t ahead = ahead_.cost[ahead_.index(layer, pool)];
  if (ahead == kNever) return;
  for (size_t s = 0; s < table_.sizes(pool).size(); ++s) {
    const int64_t* least_times = table_.least_times_of(pool, s, layer);
    const int64_t below = search_.below - ahead - price(pool, s);
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

// Labels behind are in order of cost, and the more they cost the less deep they are.
void Search::add_before_in_order(int pool, size_t size, int begin, int end, int64_t below) {
  const int64_t paid = price(pool, size);
  const int64_t deepest = search_.with_r() ? ahead_.deepest[ahead_.index(begin, pool)] : kNever;
  const int64_t least_stay = search_.with_r() ? table_.least_stays_of(pool, size, begin)[end] : 0;
  for (int next = 0; next < table_.pools(); ++next) {
    const Range behind = front(end, next);
    if (behind.begin == behind.end || labels_[at(behind.begin)].cost >= below) continue;
    const Crossing* crossing = table_.crossing(pool, next, end);
    if (!crossing || crossing->occupied > search_.longest) continue;
    const int64_t trip = search_.with_r() ? crossing->round_trip : 0;
    for (int32_t i = behind.begin; i < behind.end && labels_[at(i)].cost < below; ++i) {
      const int64_t cost = labels_[at(i)].cost + paid, depth = labels_[at(i)].depth + trip;
      if (depth + least_stay > deepest || is_known(cost, depth + least_stay)) continue;
      for (const Option& option : table_.options(pool, size, begin, end)) {
        if (!can_do(option) || depth + option.time > most_stay(option, search_)) continue;
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

Chain Search::run() {
  for (int layer = table_.layers() - 1; layer >= 0; --layer)
    for (int pool = 0; pool < table_.pools(); ++pool) {
      made_.clear();
      in_order_ ? add_stages_in_order(layer, pool) : add_stages(layer, pool);
      Range& range = front(layer, pool);
      range.begin = static_cast<int32_t>(labels_.size());
      labels_.insert(labels_.end(), made_.begin(), made_.end());
      range.end = static_cast<int32_t>(labels_.size());
      for (const Label& label : made_) least_[at(layer)] = std::min(least_[at(layer)], label.cost);
    }
  Chain chain;
  chain.cost = search_.below;
  int32_t best = -1;
  for (int pool = 0; pool < table_.pools(); ++pool)
    for (int32_t i = front(0, pool).begin; i < front(0, pool).end; ++i) {
      const Label& label = labels_[at(i)];
      const int64_t cost = search_.any_schedule() ? label.cost : label.end;
      if (cost >= chain.cost) continue;
      chain.cost = cost;
      best = i;
    }
  for (; best >= 0; best = labels_[at(best)].behind)
    chain.stages.push_back(&table_.option(labels_[at(best)].option));
  return chain;
}

// What chains cost at least is nearly what the cheapest one does: below a little more first, then
// below more and more, since a search takes as long as there are chains below its limit.
// `first`: how much more is tried first, as a share of that; and then what was nearly enough.
Chain cheapest_priced(const Table& table, PricedSearch search, double* first = nullptr) {
  const Ahead ahead(table, search);
  const int64_t below = search.below;
  const auto whole = static_cast<double>(ahead.whole);
  const double share = std::max(kMoreCost, first ? *first : 0.0);
  if (ahead.whole >= below) return {};
  for (int64_t more = std::max<int64_t>(1, static_cast<int64_t>(whole * share));;
       more *= kMoreFactor) {
    search.below = std::min(below, ahead.whole + more);
    Chain chain = Search(table, search, ahead).run();
    if (!chain.stages.empty() && first && ahead.whole > 0)
      *first = static_cast<double>(more) / kMoreFactor / whole;
    if (!chain.stages.empty() || search.below == below) return chain;
  }
}

}  // namespace

struct PricedChains::Tables {
  Table table;
  InFlightRule rule;
  std::function<Nanoseconds(const StageRange&)> sums_at_least;
  bool counted = false;

  std::optional<PricedChain> found(const Chain& chain) const {
    if (chain.stages.empty()) return std::nullopt;
    PricedChain priced{
        plan_of(table, 0, chain), std::vector<int>(at(table.pools()), 0), chain.cost};
    for (const PipelineStage& stage : priced.plan.stages)
      priced.devices[at(stage.range.pool)] += stage.range.devices;
    return priced;
  }
};

PricedChains::PricedChains(const PipelineRequest& request, bool counted) {
  verify(request, kMostPricedPools);
  MEDLEY_CHECK(request.microbatches.size() == 1);
  MEDLEY_CHECK(request.in_flight == InFlightRule::kPeriod);
  tables_ = std::make_unique<Tables>(
      Table(request, 0, false), request.in_flight, request.sums_at_least, counted);
}

PricedChains::PricedChains(const ChainSearches& same, bool counted) {
  const PipelineRequest& request = same.tables_->request;
  MEDLEY_CHECK(request.in_flight == InFlightRule::kPeriod);
  tables_ = std::make_unique<Tables>(
      same.tables_->table, request.in_flight, request.sums_at_least, counted);
}

PricedChains::~PricedChains() = default;

std::optional<PricedChain> PricedChains::at_period(Nanoseconds period,
                                                   const Prices& prices,
                                                   int64_t below) const {
  MEDLEY_CHECK(period.value >= 1);
  const Chain chain = cheapest_priced(
      tables_->table,
      {.prices = prices, .counted = tables_->counted, .below = below, .longest = period.value});
  std::optional<PricedChain> found = tables_->found(chain);
  if (!found) return found;
  int64_t paid = 0;
  for (size_t pool = 0; pool < prices.size(); ++pool) paid += prices[pool] * found->devices[pool];
  settle(found->plan, tables_->rule, period.value, cost_of(chain) - paid);
  return found;
}

std::vector<PipelinePlan> PricedChains::on(const std::vector<int>& devices,
                                           int microbatches,
                                           Nanoseconds below) const {
  MEDLEY_CHECK(tables_->counted && devices.size() <= kMostCountedPools);
  const Table table = tables_->table.on(devices, microbatches);
  const Prices nothing(devices.size(), 0);
  std::vector<PipelinePlan> plans;
  for (int64_t period = table.longest_period(); period >= 1;) {
    const Chain chain = cheapest_priced(
        table, {.prices = nothing, .counted = true, .below = below.value, .longest = period});
    if (chain.stages.empty()) break;
    PipelinePlan plan = plan_of(table, 0, chain);
    settle(plan, tables_->rule, period, cost_of(chain));
    period = plan.period.value - 1;
    if (plan.predicted < below) plans.push_back(std::move(plan));
  }
  return plans;
}

std::optional<PricedChain> PricedChains::under_any_schedule(int64_t microbatches,
                                                            Nanoseconds step,
                                                            const Prices& prices,
                                                            int64_t below,
                                                            Closeness closeness,
                                                            double* first) const {
  MEDLEY_CHECK(microbatches >= 1);
  return tables_->found(cheapest_priced(tables_->table,
                                        {.prices = prices,
                                         .counted = tables_->counted,
                                         .below = below,
                                         .longest = step.value / microbatches,
                                         .microbatches = microbatches,
                                         .step = step.value,
                                         .closeness = closeness},
                                        first));
}

namespace {

// Whether some schedule may do so many micro-batches in the time.
bool may_do(const Table& table,
            const PipelinePlan& plan,
            const std::vector<int64_t>& sums,
            int64_t count,
            Nanoseconds step,
            Closeness closeness) {
  int64_t end = 0, stays = 0;
  for (size_t s = plan.stages.size(); s-- > 0;) {
    const PipelineStage& stage = plan.stages[s];
    const int64_t time = (stage.option.forward + stage.option.backward).value;
    int64_t trip = 0, in_front = 0;
    if (count * time > step.value) return false;
    if (sums[s] > 0 && count * time - stage.option.backward.value + sums[s] > step.value)
      return false;
    if (s < plan.boundaries.size()) {
      const BoundaryTimes& boundary = plan.boundaries[s];
      trip = boundary.round_trip().value;
      in_front = table.in_front((stage.option.forward + boundary.forward + boundary.latency).value,
                                time + trip);
      if (count * std::max(boundary.forward, boundary.backward).value > step.value) return false;
    }
    end = std::max(count * time, end + in_front);
    const int64_t stay = stays + time + trip;
    stays = stay - stage.option.weights.value;
    if (closeness == Closeness::kRough || stage.room >= plan.microbatches) continue;
    if (count * stay > step.value * stage.room) return false;
  }
  const StageOption& first = plan.stages[0].option;
  const int64_t update = first.update.value + std::max<int64_t>(0, sums[0] - first.backward.value);
  const int64_t own = count * (first.forward + first.backward).value;
  return closeness != Closeness::kClose || table.with_update(own, end, update) <= step.value;
}

}  // namespace

int64_t PricedChains::most_microbatches(const PipelinePlan& plan,
                                        Nanoseconds step,
                                        Closeness closeness) const {
  std::vector<int64_t> sums;
  for (const PipelineStage& stage : plan.stages)
    sums.push_back(tables_->sums_at_least ? tables_->sums_at_least(stage.range).value : 0);
  int64_t low = 0, high = int64_t{1} << 21;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (may_do(tables_->table, plan, sums, middle, step, closeness) ? low : high) = middle;
  }
  return low;
}

Nanoseconds PricedChains::longest_period() const { return {tables_->table.longest_period()}; }

}  // namespace medley
