#include "medley/solve/pbqp_core.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace medley::pbqp {
namespace {

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

double clamped(int64_t cost) { return static_cast<double>(std::min(cost, kForbidden)); }

Table transposed_to_rows(const Table& table, bool column) {
  if (!column) return table;
  const size_t rows = at(table.sizes[0]), columns = at(table.sizes[1]);
  Table out{{table.sizes[1], table.sizes[0]}, std::vector<double>(rows * columns)};
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) out.costs[c * rows + r] = table.costs[r * columns + c];
  return out;
}

// Drops rows or columns of a table, or entries of a unary.
Table kept(const Table& table, bool column, const std::vector<int32_t>& keep) {
  const bool unary = table.sizes.size() == 1;
  const size_t rows = unary ? 1 : at(table.sizes[0]), columns = at(table.sizes.back());
  Table out{table.sizes, {}};
  out.sizes[unary || column ? out.sizes.size() - 1 : 0] = static_cast<int32_t>(keep.size());
  if (unary || column) {
    for (size_t r = 0; r < rows; ++r)
      for (const int32_t c : keep) out.costs.push_back(table.costs[r * columns + at(c)]);
  } else {
    for (const int32_t r : keep)
      for (size_t c = 0; c < columns; ++c) out.costs.push_back(table.costs[at(r) * columns + c]);
  }
  return out;
}

bool all_of_row_forbidden(const Table& rows, size_t row) {
  const auto begin = rows.costs.begin() + static_cast<ptrdiff_t>(row * at(rows.sizes[1]));
  return std::all_of(begin, begin + rows.sizes[1], [](double cost) { return cost >= kNever; });
}

}  // namespace

size_t HashOfIds::operator()(const std::vector<int32_t>& ids) const {
  uint64_t hash = ids.size();
  for (const int32_t id : ids) hash = mixed(hash, static_cast<uint64_t>(static_cast<uint32_t>(id)));
  return hash;
}

int32_t TablePool::add(Table table) {
  uint64_t hash = table.sizes.size();
  for (const int32_t size : table.sizes) hash = mixed(hash, static_cast<uint64_t>(size));
  for (const double cost : table.costs) hash = mixed(hash, std::bit_cast<uint64_t>(cost));
  std::vector<int32_t>& ids = ids_[hash];
  for (const int32_t id : ids)
    if ((*this)[id] == table) return id;
  ids.push_back(static_cast<int32_t>(tables_.size()));
  tables_.push_back(std::move(table));
  return ids.back();
}

std::pair<int32_t, double> TablePool::add_less_minimum(Table table) {
  double least = kNever;
  for (const double cost : table.costs) least = std::min(least, cost);
  if (least < kNever)
    for (double& cost : table.costs) cost = cost >= kNever ? kNever : cost - least;
  return {add(std::move(table)), least};
}

Core Reducer::core_of(const Pbqp& problem) {
  std::vector<int32_t> unaries, tables;
  for (const std::vector<int64_t>& costs : problem.unaries) {
    Table table{{static_cast<int32_t>(costs.size())}, {}};
    std::ranges::transform(costs, std::back_inserter(table.costs), clamped);
    unaries.push_back(pool_.add(std::move(table)));
  }
  for (const PbqpTable& edge : problem.tables) {
    Table table{{edge.rows, edge.columns}, {}};
    std::ranges::transform(edge.costs, std::back_inserter(table.costs), clamped);
    tables.push_back(pool_.add(std::move(table)));
  }
  Core core;
  for (int v = 0; v < problem.num_variables(); ++v) {
    core.unary.push_back(unaries[at(problem.unary_of[at(v)])]);
    core.choices.emplace_back(at(problem.num_choices(v)));
    std::iota(core.choices.back().begin(), core.choices.back().end(), 0);
  }
  std::vector<CoreEdge> edges;
  for (const PbqpEdge& edge : problem.edges)
    edges.push_back({edge.u, edge.v, tables[at(edge.table)]});
  std::ranges::sort(edges, {}, [](const CoreEdge& e) { return std::tuple(e.u, e.v, e.table); });
  std::map<std::pair<int32_t, int32_t>, int32_t> sums;
  for (const CoreEdge& edge : edges) {
    if (core.edges.empty() || core.edges.back().u != edge.u || core.edges.back().v != edge.v) {
      core.edges.push_back(edge);
      continue;
    }
    int32_t& sum = core.edges.back().table;
    const auto [found, missing] = sums.try_emplace({sum, edge.table}, -1);
    if (missing) {
      Table table = pool_[sum];
      for (size_t i = 0; i < table.costs.size(); ++i)
        table.costs[i] = std::min(kNever, table.costs[i] + pool_[edge.table].costs[i]);
      found->second = pool_.add(std::move(table));
    }
    sum = found->second;
  }
  return core;
}

int32_t Reducer::kept_of(int32_t table, bool column, const std::vector<int32_t>& keep) {
  std::vector<int32_t> key{table, column ? 1 : 0};
  key.insert(key.end(), keep.begin(), keep.end());
  const auto [found, missing] = kept_.try_emplace(std::move(key), -1);
  if (missing) found->second = pool_.add(kept(pool_[table], column, keep));
  return found->second;
}

Core Reducer::restrict(const Core& core, const std::vector<std::vector<int32_t>>& keep) {
  Core out = core;
  const auto whole = [&](size_t v) { return keep[v].size() == core.choices[v].size(); };
  for (size_t v = 0; v < core.num_variables(); ++v) {
    if (whole(v)) continue;
    out.choices[v].clear();
    for (const int32_t position : keep[v]) out.choices[v].push_back(core.choices[v][at(position)]);
    out.unary[v] = kept_of(core.unary[v], false, keep[v]);
  }
  for (CoreEdge& edge : out.edges) {
    if (!whole(at(edge.u))) edge.table = kept_of(edge.table, false, keep[at(edge.u)]);
    if (!whole(at(edge.v))) edge.table = kept_of(edge.table, true, keep[at(edge.v)]);
  }
  return out;
}

// regrets[t * n + s] = max over the neighbour's choices x of cost(t, x) - cost(s, x): the largest
// loss of t against s on this edge.
const std::vector<double>& Reducer::regrets(int32_t id, bool column) {
  const auto [found, missing] = regrets_.try_emplace({id, column});
  if (!missing) return found->second;
  const Table rows = transposed_to_rows(pool_[id], column);
  const size_t n = at(rows.sizes[0]), m = at(rows.sizes[1]);
  // Entries x of all rows are contiguous for an inner loop over s.
  const Table columns = transposed_to_rows(rows, true);
  std::vector<double>& out = found->second;
  out.assign(n * n, -2 * kNever);
  for (size_t t = 0; t < n; ++t) {
    double* const regret = &out[t * n];
    for (size_t x = 0; x < m; ++x) {
      const double cost = rows.costs[t * m + x];
      const double* const others = &columns.costs[x * n];
      for (size_t s = 0; s < n; ++s) {
        const double loss = cost - others[s];
        regret[s] = regret[s] < loss ? loss : regret[s];
      }
    }
  }
  regrets_held_ += n * n;
  return out;
}

const std::vector<int32_t>& Reducer::survivors(
    int32_t unary, const std::vector<std::pair<int32_t, bool>>& tables) {
  std::vector<int32_t> key{unary};
  for (const auto& [table, column] : tables) key.push_back(2 * table + (column ? 1 : 0));
  const auto [found, missing] = survivors_.try_emplace(std::move(key));
  if (!missing) return found->second;
  if (regrets_held_ > 8'000'000) {
    regrets_.clear();
    regrets_held_ = 0;
  }
  const std::vector<double>& own = pool_[unary].costs;
  const size_t n = own.size();
  std::vector<char> alive(n);
  for (size_t s = 0; s < n; ++s) alive[s] = own[s] < kNever;
  for (const auto& [table, column] : tables) {
    const Table rows = transposed_to_rows(pool_[table], column);
    for (size_t s = 0; s < n; ++s)
      if (all_of_row_forbidden(rows, s)) alive[s] = false;
  }
  // Largest loss of t against s over all edges and its own cost.
  std::vector<double> loss(n * n);
  for (size_t t = 0; t < n; ++t)
    for (size_t s = 0; s < n; ++s) loss[t * n + s] = own[t] - own[s];
  for (const auto& [table, column] : tables) {
    const std::vector<double>& regret = regrets(table, column);
    for (size_t i = 0; i < n * n; ++i) loss[i] += regret[i];
  }
  for (size_t s = 0; s < n; ++s)
    for (size_t t = 0; t < n && alive[s]; ++t)
      if (t != s && alive[t] && (loss[t * n + s] < 0 || (loss[t * n + s] == 0 && t < s)))
        alive[s] = false;
  for (size_t s = 0; s < n; ++s)
    if (alive[s]) found->second.push_back(static_cast<int32_t>(s));
  return found->second;
}

// Returns the neighbour's unary plus the only row (or column) of an edge's table, less its minimum.
std::pair<int32_t, double> Reducer::plus_row(int32_t unary, int32_t table, bool column) {
  const auto [found, missing] = plus_row_.try_emplace({unary, table, column ? 1 : 0});
  if (missing) {
    Table sum = pool_[unary];
    for (size_t i = 0; i < sum.costs.size(); ++i)
      sum.costs[i] = std::min(kNever, sum.costs[i] + pool_[table].costs[i]);
    found->second = pool_.add_less_minimum(std::move(sum));
  }
  return found->second;
}

std::pair<int32_t, double> Reducer::minimum_over(int32_t unary, Side a, Side b) {
  const auto [found, missing] =
      minimum_over_.try_emplace({unary, a.table, a.column ? 1 : 0, b.table, b.column ? 1 : 0});
  if (!missing) return found->second;
  const std::vector<double>& own = pool_[unary].costs;
  // For each choice of the variable, the neighbours' entries are contiguous.
  const Table first = transposed_to_rows(pool_[a.table], a.column);
  const Table second = b.table < 0 ? Table{{first.sizes[0], 1}, std::vector<double>(own.size())}
                                   : transposed_to_rows(pool_[b.table], b.column);
  const size_t rows = at(first.sizes[1]), columns = at(second.sizes[1]);
  Table out{{first.sizes[1]}, std::vector<double>(rows * columns, kNever)};
  if (b.table >= 0) out.sizes.push_back(second.sizes[1]);
  for (size_t k = 0; k < own.size(); ++k) {
    const double* const costs = &second.costs[k * columns];
    for (size_t x = 0; x < rows; ++x) {
      const double base = own[k] + first.costs[k * rows + x];
      double* const row = &out.costs[x * columns];
      for (size_t y = 0; y < columns; ++y) {
        const double cost = base + costs[y];
        row[y] = cost < row[y] ? cost : row[y];
      }
    }
  }
  return found->second = pool_.add_less_minimum(std::move(out));
}

int32_t Reducer::transposed(int32_t table) {
  const auto [found, missing] = transposed_.try_emplace(table, -1);
  if (missing) found->second = pool_.add(transposed_to_rows(pool_[table], true));
  return found->second;
}

std::pair<int32_t, double> Reducer::sum(int32_t a, int32_t b) {
  const auto [found, missing] = sum_.try_emplace({std::min(a, b), std::max(a, b)});
  if (!missing) return found->second;
  Table out = pool_[a];
  const std::vector<double>& more = pool_[b].costs;
  for (size_t i = 0; i < out.costs.size(); ++i)
    out.costs[i] = std::min(kNever, out.costs[i] + more[i]);
  return found->second = pool_.add_less_minimum(std::move(out));
}

bool Reducer::absorb(Core& core, Incidences& incidences, int32_t v, std::vector<char>& pending) {
  core.constant += pool_[core.unary[at(v)]].costs[0];
  core.unary[at(v)] = -1;
  for (const Incidence& incidence : incidences[at(v)]) {
    CoreEdge& edge = core.edges[at(incidence.edge)];
    const int32_t other = incidence.column ? edge.u : edge.v;
    const auto [unary, least] = plus_row(core.unary[at(other)], edge.table, incidence.column);
    if (least >= kNever) return false;
    core.unary[at(other)] = unary;
    core.constant += least;
    edge.table = -1;
    std::erase_if(incidences[at(other)],
                  [&](const Incidence& i) { return i.edge == incidence.edge; });
    pending[at(other)] = true;
  }
  incidences[at(v)].clear();
  return true;
}

bool Reducer::visit(Core& core, Incidences& incidences, int32_t v, std::vector<char>& pending) {
  std::vector<std::pair<int32_t, bool>> tables;
  for (const Incidence& incidence : incidences[at(v)])
    tables.emplace_back(core.edges[at(incidence.edge)].table, incidence.column);
  std::ranges::sort(tables);
  const std::vector<int32_t>& keep = survivors(core.unary[at(v)], tables);
  if (keep.empty()) return false;
  std::vector<int32_t>& choices = core.choices[at(v)];
  if (keep.size() < choices.size()) {
    core.dropped += static_cast<int64_t>(choices.size() - keep.size());
    for (size_t i = 0; i < keep.size(); ++i) choices[i] = choices[at(keep[i])];
    choices.resize(keep.size());
    core.unary[at(v)] = kept_of(core.unary[at(v)], false, keep);
    for (const Incidence& incidence : incidences[at(v)]) {
      CoreEdge& edge = core.edges[at(incidence.edge)];
      edge.table = kept_of(edge.table, incidence.column, keep);
      pending[at(incidence.column ? edge.u : edge.v)] = true;
    }
  }
  return choices.size() > 1 || absorb(core, incidences, v, pending);
}

bool Reducer::remove_dead_ends(Core& core) {
  Incidences incidences(core.num_variables());
  for (size_t e = 0; e < core.edges.size(); ++e) {
    incidences[at(core.edges[e].u)].push_back({static_cast<int32_t>(e), false});
    incidences[at(core.edges[e].v)].push_back({static_cast<int32_t>(e), true});
  }
  std::vector<char> pending(core.num_variables(), true);
  for (bool any = true; any;) {
    any = false;
    for (size_t v = 0; v < core.num_variables(); ++v) {
      if (!pending[v]) continue;
      pending[v] = false;
      if (core.unary[v] < 0) continue;
      any = true;
      if (!visit(core, incidences, static_cast<int32_t>(v), pending)) return false;
    }
  }
  std::erase_if(core.edges, [](const CoreEdge& edge) { return edge.table < 0; });
  return true;
}

}  // namespace medley::pbqp
