#include "medley/solve/pbqp_contract.h"
#include "medley/base/at.h"

#include <algorithm>

namespace medley::pbqp {
namespace {

std::vector<std::vector<int32_t>> neighbours_of(const Core& core) {
  std::vector<std::vector<int32_t>> out(core.num_variables());
  for (const CoreEdge& edge : core.edges) {
    out[at(edge.u)].push_back(edge.v);
    out[at(edge.v)].push_back(edge.u);
  }
  for (std::vector<int32_t>& around : out)
    std::ranges::sort(around, {}, [&](int32_t v) { return std::pair(out[at(v)].size(), v); });
  return out;
}

// Returns all variables reachable from `start`, nearest first.
std::vector<int32_t> by_distance(const std::vector<std::vector<int32_t>>& neighbours,
                                 int32_t start,
                                 std::vector<char>& seen) {
  std::vector<int32_t> out{start};
  seen[at(start)] = true;
  for (size_t i = 0; i < out.size(); ++i)
    for (const int32_t v : neighbours[at(out[i])]) {
      if (seen[at(v)]) continue;
      seen[at(v)] = true;
      out.push_back(v);
    }
  return out;
}

// Returns variables by distance from an end: the farthest one from the farthest one of any.
std::vector<int32_t> from_an_end(const Core& core) {
  const std::vector<std::vector<int32_t>> neighbours = neighbours_of(core);
  std::vector<char> seen(core.num_variables(), false);
  std::vector<int32_t> out;
  for (size_t v = 0; v < core.num_variables(); ++v) {
    if (seen[v] || core.unary[v] < 0) continue;
    std::vector<int32_t> part = by_distance(neighbours, static_cast<int32_t>(v), seen);
    for (int again = 0; again < 2; ++again) {
      for (const int32_t member : part) seen[at(member)] = false;
      part = by_distance(neighbours, part.back(), seen);
    }
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace

std::optional<Contraction::Step> Contraction::step_of(int32_t variable, size_t most_entries) const {
  const std::vector<int32_t>& own = edges_of_[at(variable)];
  if (core_.unary[at(variable)] < 0 || own.size() > 2) return std::nullopt;
  size_t entries = core_.choices[at(variable)].size();
  Step step{variable, core_.unary[at(variable)], {}};
  for (const int32_t e : own) {
    const CoreEdge& edge = core_.edges[at(e)];
    const bool column = edge.v == variable;
    step.sides.push_back({{edge.table, column}, column ? edge.u : edge.v});
    entries *= core_.choices[at(step.sides.back().neighbour)].size();
  }
  if (entries > most_entries) return std::nullopt;
  std::ranges::sort(step.sides, {}, &Side::neighbour);
  return step;
}

void Contraction::take_edges(const Step& step) {
  std::vector<int32_t>& own = edges_of_[at(step.variable)];
  for (const int32_t e : own) core_.edges[at(e)].table = -1;
  own.clear();
  for (const Side& side : step.sides)
    std::erase_if(edges_of_[at(side.neighbour)],
                  [&](int32_t e) { return core_.edges[at(e)].table < 0; });
}

// Returns the constant cost for all choices. Requires: a < b.
double Contraction::put_edge(int32_t a, int32_t b, int32_t table) {
  for (const int32_t e : edges_of_[at(a)]) {
    CoreEdge& edge = core_.edges[at(e)];
    if (edge.u != b && edge.v != b) continue;
    const auto [sum, least] = reducer_.sum(edge.table, table);
    edge.table = sum;
    return least;
  }
  for (const int32_t v : {a, b})
    edges_of_[at(v)].push_back(static_cast<int32_t>(core_.edges.size()));
  core_.edges.push_back({a, b, table});
  return 0;
}

// Returns false if no choice is allowed.
bool Contraction::remove(const Step& step) {
  take_edges(step);
  double least = 0;
  if (step.sides.empty()) {
    least = reducer_.pool().add_less_minimum(reducer_.pool()[step.unary]).second;
  } else {
    const bool between = step.sides.size() == 2;
    const auto [table, minimum] = reducer_.minimum_over(
        step.unary, step.sides[0].seen, between ? step.sides[1].seen : Reducer::Side{});
    least = minimum;
    if (least >= kNever) return false;
    const int32_t first = step.sides[0].neighbour;
    if (between) {
      least += put_edge(first, step.sides[1].neighbour, table);
    } else {
      const auto [sum, more] = reducer_.sum(core_.unary[at(first)], table);
      core_.unary[at(first)] = sum;
      least += more;
    }
  }
  if (least >= kNever) return false;
  core_.constant += least;
  core_.unary[at(step.variable)] = -1;
  return true;
}

std::optional<Core> Contraction::contract(Core core, size_t most_entries) {
  core_ = std::move(core);
  choices_ = core_.choices;
  edges_of_.resize(core_.num_variables());
  for (size_t e = 0; e < core_.edges.size(); ++e)
    for (const int32_t v : {core_.edges[e].u, core_.edges[e].v})
      edges_of_[at(v)].push_back(static_cast<int32_t>(e));
  std::vector<int32_t> touched(core_.num_variables(), -1), pending;  // [variable] last round
  for (size_t v = 0; v < core_.num_variables(); ++v) pending.push_back(static_cast<int32_t>(v));
  for (int32_t round = 0; !pending.empty(); ++round) {
    std::vector<int32_t> next;
    for (const int32_t v : pending) {
      std::optional<Step> step = step_of(v, most_entries);
      if (!step) continue;
      const bool apart =
          touched[at(v)] < round && std::ranges::all_of(step->sides, [&](const Side& side) {
            return touched[at(side.neighbour)] < round;
          });
      if (!apart) {
        next.push_back(v);
        continue;
      }
      if (!remove(*step)) return std::nullopt;
      for (const Side& side : step->sides) {
        touched[at(side.neighbour)] = round;
        next.push_back(side.neighbour);
      }
      steps_.push_back(std::move(*step));
    }
    std::ranges::sort(next);
    next.erase(std::ranges::unique(next).begin(), next.end());
    pending = std::move(next);
  }
  std::erase_if(core_.edges, [](const CoreEdge& edge) { return edge.table < 0; });
  return numbered_by_distance();
}

Core Contraction::numbered_by_distance() {
  left_ = from_an_end(core_);
  std::vector<int32_t> number(core_.num_variables(), -1);
  Core out;
  out.constant = core_.constant;
  out.dropped = core_.dropped;
  for (const int32_t v : left_) {
    number[at(v)] = static_cast<int32_t>(out.num_variables());
    out.choices.push_back(std::move(core_.choices[at(v)]));
    out.unary.push_back(core_.unary[at(v)]);
  }
  for (const CoreEdge& edge : core_.edges) {
    const int32_t u = number[at(edge.u)], v = number[at(edge.v)];
    out.edges.push_back(u < v ? CoreEdge{u, v, edge.table}
                              : CoreEdge{v, u, reducer_.transposed(edge.table)});
  }
  std::ranges::sort(out.edges, {}, [](const CoreEdge& e) { return std::pair(e.u, e.v); });
  core_ = {};
  edges_of_.clear();
  return out;
}

std::vector<int32_t> Contraction::expand(const std::vector<int32_t>& choices_left) const {
  std::vector<int32_t> out;
  for (const std::vector<int32_t>& choices : choices_) out.push_back(choices[0]);
  for (size_t i = 0; i < left_.size(); ++i) out[at(left_[i])] = choices_left[i];
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    std::vector<double> sums = reducer_.pool()[step->unary].costs;
    for (const auto& [seen, neighbour] : step->sides) {
      const Table& table = reducer_.pool()[seen.table];
      const auto position = std::ranges::lower_bound(choices_[at(neighbour)], out[at(neighbour)]) -
                            choices_[at(neighbour)].begin();
      const size_t x = static_cast<size_t>(position), columns = at(table.sizes[1]);
      for (size_t k = 0; k < sums.size(); ++k)
        sums[k] += table.costs[seen.column ? x * columns + k : k * columns + x];
    }
    const auto best = std::ranges::min_element(sums) - sums.begin();
    out[at(step->variable)] = choices_[at(step->variable)][at(best)];
  }
  return out;
}

}  // namespace medley::pbqp
