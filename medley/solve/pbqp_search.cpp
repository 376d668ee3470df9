#include "medley/solve/pbqp_search.h"
#include "medley/base/at.h"

#include <algorithm>
#include <queue>

namespace medley::pbqp {
namespace {

class Search {
 public:
  Search(const TablePool& pool, const Core& core) : pool_(pool), core_(core) {
    before_.resize(core.num_variables());
    behind_.resize(core.num_variables());
    std::vector<size_t> last(core.num_variables(), 0);
    double bound = 0;
    for (const CoreEdge& edge : core.edges) {
      before_[at(edge.v)].push_back(edge);
      behind_[at(edge.u)].push_back(edge);
      last[at(edge.u)] = std::max(last[at(edge.u)], at(edge.v));
      row_minima(edge.table);
      bound += *std::ranges::min_element(row_minima(edge.table));
    }
    for (const int32_t unary : core.unary) bound += *std::ranges::min_element(pool[unary].costs);
    frontier_.resize(core.num_variables() + 1);
    for (size_t depth = 0; depth <= core.num_variables(); ++depth)
      for (size_t v = 0; v < depth; ++v)
        if (last[v] >= depth) frontier_[depth].push_back(static_cast<int32_t>(v));
    steps_.push_back({-1, -1, 0, bound});
    open_.push({bound, 0, 0});
  }

  SearchResult run(Clock::time_point deadline) {
    while (!open_.empty() && open_.top().bound < kNever) {
      const Open top = open_.top();
      if (-top.minus_depth == static_cast<int32_t>(core_.num_variables()))
        return {choices_of(top.step), static_cast<int64_t>(top.bound)};
      if (Clock::now() >= deadline) return {completed(top.step), static_cast<int64_t>(top.bound)};
      open_.pop();
      expand(top.step);
    }
    return {{}, kForbidden};
  }

 private:
  struct Step {
    int32_t parent, choice, depth;
    double bound;  // for all assignments that continue from here
  };
  struct Open {
    double bound;
    int32_t minus_depth, step;  // ties: the deeper first
    auto operator<=>(const Open&) const = default;
  };

  const std::vector<double>& row_minima(int32_t id) {
    const auto [found, missing] = row_minima_.try_emplace(id);
    if (missing) {
      const Table& table = pool_[id];
      for (auto row = table.costs.begin(); row != table.costs.end(); row += table.sizes[1])
        found->second.push_back(*std::min_element(row, row + table.sizes[1]));
    }
    return found->second;
  }

  // Returns the bound after the next variable's choice.
  double bound_of(int32_t step, const std::vector<int32_t>& chosen, size_t choice) {
    const size_t v = chosen.size();
    const std::vector<double>& own = pool_[core_.unary[v]].costs;
    double bound = steps_[at(step)].bound + own[choice] - *std::ranges::min_element(own);
    for (const CoreEdge& edge : before_[v]) {
      const Table& table = pool_[edge.table];
      const size_t row = at(chosen[at(edge.u)]);
      bound += table.costs[row * at(table.sizes[1]) + choice] - row_minima(edge.table)[row];
    }
    for (const CoreEdge& edge : behind_[v]) {
      const std::vector<double>& minima = row_minima(edge.table);
      bound += minima[choice] - *std::ranges::min_element(minima);
    }
    return bound;
  }

  void expand(int32_t step) {
    std::vector<int32_t> chosen = choices_of(step);
    const size_t v = chosen.size();
    const size_t num_choices = core_.choices[v].size();
    for (size_t s = 0; s < num_choices; ++s) {
      const double bound = bound_of(step, chosen, s);
      if (bound >= kNever) continue;
      std::vector<int32_t> key{static_cast<int32_t>(v + 1)};
      chosen.push_back(static_cast<int32_t>(s));
      for (const int32_t n : frontier_[v + 1]) key.push_back(chosen[at(n)]);
      chosen.pop_back();
      const auto [found, first] = seen_.try_emplace(std::move(key), bound);
      if (!first && found->second <= bound) continue;
      found->second = bound;
      const auto depth = static_cast<int32_t>(v + 1);
      open_.push({bound, -depth, static_cast<int32_t>(steps_.size())});
      steps_.push_back({step, static_cast<int32_t>(s), depth, bound});
    }
  }

  std::vector<int32_t> choices_of(int32_t step) const {
    std::vector<int32_t> out(at(steps_[at(step)].depth));
    for (size_t v = out.size(); v-- > 0; step = steps_[at(step)].parent)
      out[v] = steps_[at(step)].choice;
    return out;
  }

  std::vector<int32_t> completed(int32_t step) {
    std::vector<int32_t> chosen = choices_of(step);
    while (chosen.size() < core_.num_variables()) {
      std::vector<double> bounds(core_.choices[chosen.size()].size());
      for (size_t s = 0; s < bounds.size(); ++s) bounds[s] = bound_of(step, chosen, s);
      const auto best = std::ranges::min_element(bounds);
      if (*best >= kNever) return {};
      chosen.push_back(static_cast<int32_t>(best - bounds.begin()));
    }
    return chosen;
  }

  const TablePool& pool_;
  const Core& core_;
  std::vector<std::vector<CoreEdge>> before_, behind_;  // [variable]
  std::vector<std::vector<int32_t>> frontier_;  // [depth] chosen, with an edge to a later one
  std::unordered_map<int32_t, std::vector<double>> row_minima_;
  std::vector<Step> steps_;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
  Memo<double> seen_;
};

}  // namespace

SearchResult search(const TablePool& pool, const Core& core, Clock::time_point deadline) {
  return Search(pool, core).run(deadline);
}

}  // namespace medley::pbqp
