#include <algorithm>
#include <queue>

#include "medley/base/at.h"
#include "medley/solve/pbqp_eliminate.h"

namespace medley::pbqp {
namespace {

// Elimination of this many entries is faster than the search for another order.
constexpr double kNotWorthAnotherOrder = 1e6;

enum class Key { kResult, kFill, kGrowth };

// Elimination with names instead of tables: equal names represent equal tables.
class Simulation {
 public:
  Simulation(const Core& core, Key key) : core_(core), key_(key) {
    neighbours_.resize(core.num_variables());
    around_.assign(core.num_variables(), -1);
    factors_of_.resize(core.num_variables());
    for (const CoreEdge& edge : core.edges) {
      neighbours_[at(edge.u)].push_back(edge.v);
      neighbours_[at(edge.v)].push_back(edge.u);
      add_factor(edge.table, {edge.u, edge.v});
      next_name_ = std::max(next_name_, edge.table + 1);
    }
    for (size_t v = 0; v < core.num_variables(); ++v) {
      std::ranges::sort(neighbours_[v]);
      if (core.unary[v] < 0) continue;
      add_factor(core.unary[v], {static_cast<int32_t>(v)});
      next_name_ = std::max(next_name_, core.unary[v] + 1);
    }
  }

  std::optional<EliminationOrder> run(double table_cap, double work_cap) {
    EliminationOrder order;
    version_.assign(core_.num_variables(), 0);
    for (size_t v = 0; v < core_.num_variables(); ++v)
      if (core_.unary[v] >= 0) enqueue(static_cast<int32_t>(v));
    while (!queue_.empty()) {
      const auto [cost, tie, v, version] = queue_.top();
      queue_.pop();
      if (version != version_[at(v)]) continue;
      const double joint = result_size(v) * size(v);
      const bool first = eliminate(v);
      order.variables.push_back(v);
      order.largest_table = std::max(order.largest_table, joint);
      if (first) order.work += joint;
      if (order.largest_table > table_cap || order.work > work_cap) return std::nullopt;
    }
    return order;
  }

 private:
  struct Factor {
    int32_t name = 0;
    std::vector<int32_t> scope;
  };
  struct Entry {
    double cost, tie;
    int32_t variable, version;
    auto operator<=>(const Entry&) const = default;
  };

  double size(int32_t v) const { return static_cast<double>(core_.choices[at(v)].size()); }

  double result_size(int32_t v) const {
    double out = 1;
    for (const int32_t n : neighbours_[at(v)]) out *= size(n);
    return out;
  }

  // Returns the fill: exactly the pairs of neighbours, less those that are adjacent.
  double fill(int32_t v) {
    double out = 0, later = 0;  // later: over neighbours after the current one
    for (const int32_t n : neighbours_[at(v)]) {
      around_[at(n)] = v;
      later += size(n);
    }
    for (const int32_t n : neighbours_[at(v)]) {
      later -= size(n);
      double joined = 0;
      const std::vector<int32_t>& near = neighbours_[at(n)];
      for (auto next = std::ranges::upper_bound(near, n); next != near.end(); ++next)
        if (around_[at(*next)] == v) joined += size(*next);
      out += size(n) * (later - joined);
    }
    return out;
  }

  double growth(int32_t v) const {
    double out = result_size(v);
    for (const int32_t f : factors_of_[at(v)]) {
      double factor = 1;
      for (const int32_t n : factors_[at(f)].scope) factor *= size(n);
      out -= factor;
    }
    return out;
  }

  void enqueue(int32_t v) {
    const double result = result_size(v);
    const double cost = key_ == Key::kResult ? result : key_ == Key::kFill ? fill(v) : growth(v);
    queue_.push({cost, result * size(v), v, ++version_[at(v)]});
  }

  void add_factor(int32_t name, std::vector<int32_t> scope) {
    for (const int32_t v : scope)
      factors_of_[at(v)].push_back(static_cast<int32_t>(factors_.size()));
    factors_.push_back({name, std::move(scope)});
  }

  // Returns whether no earlier elimination had the same factors.
  bool eliminate(int32_t v) {
    const std::vector<int32_t> scope = neighbours_[at(v)];
    std::vector<int32_t> key{static_cast<int32_t>(core_.choices[at(v)].size())};
    for (const int32_t n : scope) key.push_back(static_cast<int32_t>(core_.choices[at(n)].size()));
    std::vector<std::vector<int32_t>> parts;
    const std::vector<int32_t> taken = factors_of_[at(v)];
    for (const int32_t f : taken) {
      std::vector<int32_t> part{factors_[at(f)].name};
      for (const int32_t n : factors_[at(f)].scope) {
        part.push_back(
            n == v ? -1 : static_cast<int32_t>(std::ranges::lower_bound(scope, n) - scope.begin()));
        std::erase(factors_of_[at(n)], f);
      }
      parts.push_back(std::move(part));
    }
    std::ranges::sort(parts);
    for (const std::vector<int32_t>& part : parts) {
      key.push_back(-2);
      key.insert(key.end(), part.begin(), part.end());
    }
    const auto [found, first] = names_.try_emplace(std::move(key), next_name_);
    if (first) ++next_name_;
    if (!scope.empty()) add_factor(found->second, scope);
    join_neighbours(v, scope);
    return first;
  }

  void join_neighbours(int32_t v, const std::vector<int32_t>& scope) {
    for (const int32_t n : scope) {
      std::vector<int32_t>& around = neighbours_[at(n)];
      std::vector<int32_t> joined;
      std::ranges::set_union(around, scope, std::back_inserter(joined));
      std::erase_if(joined, [&](int32_t other) { return other == v || other == n; });
      around = std::move(joined);
    }
    for (const int32_t n : scope) enqueue(n);
    ++version_[at(v)];
  }

  const Core& core_;
  const Key key_;
  std::vector<std::vector<int32_t>> neighbours_;  // [variable], ascending
  std::vector<std::vector<int32_t>> factors_of_;  // [variable]
  std::vector<int32_t> around_;  // [variable]: variable whose neighbour it is, in fill()
  std::vector<Factor> factors_;
  std::vector<int32_t> version_;  // [variable]: version of its entry in the queue
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  Memo<int32_t> names_;
  int32_t next_name_ = 0;
};

}  // namespace

std::optional<EliminationOrder> find_order(const Core& core, double table_cap, double work_cap) {
  std::optional<EliminationOrder> best;
  for (const Key key : {Key::kResult, Key::kFill, Key::kGrowth}) {
    if (best && best->work < kNotWorthAnotherOrder) break;
    auto order = Simulation(core, key).run(table_cap, best ? best->work : work_cap);
    if (order && (!best || order->work < best->work)) best = std::move(order);
  }
  return best;
}

}  // namespace medley::pbqp
