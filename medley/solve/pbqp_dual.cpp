#include "medley/solve/pbqp_dual.h"
#include "medley/base/at.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace medley::pbqp {
namespace {

constexpr int kRefinements = 6;

// Passes over classes between checks whether messages still move.
constexpr int kPasses = 16;
constexpr double kStill = 1;

double largest_allowed(const Table& table) {
  double largest = 0;
  for (const double cost : table.costs)
    if (cost < kNever) largest = std::max(largest, cost);
  return largest;
}

// Sets least[x] to the minimum of base[r] + costs[r][x] over all rows. Requires: a row.
[[gnu::always_inline]] inline void find_least_inline(double* __restrict least,
                                                     size_t columns,
                                                     const double* __restrict base,
                                                     size_t rows,
                                                     const double* __restrict costs) {
  for (size_t x = 0; x < columns; ++x) least[x] = base[0] + costs[x];
  size_t r = 1;
  for (; r + 4 <= rows; r += 4) {
    const double b0 = base[r], b1 = base[r + 1], b2 = base[r + 2], b3 = base[r + 3];
    const double* const row = costs + r * columns;
    for (size_t x = 0; x < columns; ++x) {
      const double one = std::min(b0 + row[x], b1 + row[columns + x]);
      const double two = std::min(b2 + row[2 * columns + x], b3 + row[3 * columns + x]);
      least[x] = std::min(least[x], std::min(one, two));
    }
  }
  for (; r < rows; ++r)
    for (size_t x = 0; x < columns; ++x)
      least[x] = std::min(least[x], base[r] + costs[r * columns + x]);
}

// Bitwise equal for any register width. (Without an ifunc, which sanitizers do not support.)
#ifdef __x86_64__
[[gnu::target("avx2")]] void find_least_avx2(
    double* least, size_t columns, const double* base, size_t rows, const double* costs) {
  find_least_inline(least, columns, base, rows, costs);
}
#endif

void find_least(
    double* least, size_t columns, const double* base, size_t rows, const double* costs) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return find_least_avx2(least, columns, base, rows, costs);
#endif
  find_least_inline(least, columns, base, rows, costs);
}

// Colours of variables: those of one colour have equal unaries and equal neighbourhoods up to
// kRefinements edges. `before` is one refinement coarser.
struct Colours {
  std::vector<int32_t> now, before;
  int32_t count = 0;
};

Colours refined_colours(const Core& core) {
  Colours out;
  out.now = core.unary;
  for (int round = 0; round < kRefinements; ++round) {
    out.before = out.now;
    std::vector<std::vector<std::array<int32_t, 3>>> around(core.num_variables());
    for (const CoreEdge& edge : core.edges) {
      around[at(edge.u)].push_back({edge.table, 0, out.before[at(edge.v)]});
      around[at(edge.v)].push_back({edge.table, 1, out.before[at(edge.u)]});
    }
    Memo<int32_t> colours;
    for (size_t v = 0; v < core.num_variables(); ++v) {
      std::ranges::sort(around[v]);
      std::vector<int32_t> key{out.before[v]};
      for (const auto& neighbour : around[v])
        key.insert(key.end(), neighbour.begin(), neighbour.end());
      out.now[v] =
          colours.try_emplace(std::move(key), static_cast<int32_t>(colours.size())).first->second;
    }
    out.count = static_cast<int32_t>(colours.size());
  }
  return out;
}

}  // namespace

Dual::Dual(const TablePool& pool, const Core& core) : core_(core) {
  forbidden_ = 1;
  for (const int32_t unary : core.unary)
    if (unary >= 0) forbidden_ += largest_allowed(pool[unary]);
  std::unordered_map<int32_t, size_t> matrix_of;
  std::unordered_map<int32_t, double> largest;
  for (const CoreEdge& edge : core.edges) {
    const auto [found, missing] = largest.try_emplace(edge.table, 0);
    if (missing) found->second = largest_allowed(pool[edge.table]);
    forbidden_ += found->second;
  }
  forbidden_ = std::min(forbidden_, kNever);
  const auto clamped = [&](double cost) { return std::min(cost, forbidden_); };
  full_.incidences.resize(core.num_variables());
  for (const CoreEdge& edge : core.edges) {
    const auto [found, missing] = matrix_of.try_emplace(edge.table, matrices_.size());
    if (missing) {
      const Table& table = pool[edge.table];
      Matrix matrix{at(table.sizes[0]), at(table.sizes[1]), table.costs, table.costs};
      std::ranges::transform(matrix.by_row, matrix.by_row.begin(), clamped);
      for (size_t r = 0; r < matrix.rows; ++r)
        for (size_t c = 0; c < matrix.columns; ++c)
          matrix.by_column[c * matrix.rows + r] = matrix.by_row[r * matrix.columns + c];
      matrices_.push_back(std::move(matrix));
    }
    full_.incidences[at(edge.u)].push_back({full_.matrix_of.size(), false});
    full_.incidences[at(edge.v)].push_back({full_.matrix_of.size(), true});
    add_edge(full_, found->second);
  }
  for (const int32_t unary : core.unary) {
    full_.unaries.emplace_back();
    if (unary < 0) continue;
    full_.unaries.back() = pool[unary].costs;
    std::ranges::transform(full_.unaries.back(), full_.unaries.back().begin(), clamped);
  }
}

void Dual::add_edge(Graph& graph, size_t matrix) const {
  graph.matrix_of.push_back(matrix);
  graph.begin.push_back(graph.messages.size());
  graph.begin.push_back(graph.messages.size() + matrices_[matrix].rows);
  graph.messages.resize(graph.messages.size() + matrices_[matrix].rows + matrices_[matrix].columns);
}

double Dual::gather(const Graph& graph, size_t node, std::vector<double>& unary) const {
  unary = graph.unaries[node];
  size_t before = 0, behind = 0;
  for (const auto& [edge, column] : graph.incidences[node]) {
    const double* const message = &graph.messages[graph.begin[2 * edge + (column ? 1 : 0)]];
    for (size_t s = 0; s < unary.size(); ++s) unary[s] += message[s];
    ++(column ? before : behind);
  }
  return 1.0 / static_cast<double>(std::max({before, behind, size_t{1}}));
}

void Dual::sweep(Graph& graph, bool forward) const {
  std::vector<double> unary, base;
  for (size_t i = 0; i < graph.unaries.size(); ++i) {
    const size_t node = forward ? i : graph.unaries.size() - 1 - i;
    if (graph.incidences[node].empty()) continue;
    const double share = gather(graph, node, unary);
    for (const auto& [edge, column] : graph.incidences[node]) {
      if (column == forward) continue;
      const Matrix& matrix = matrices_[graph.matrix_of[edge]];
      const double* const own = &graph.messages[graph.begin[2 * edge + (column ? 1 : 0)]];
      double* const other = &graph.messages[graph.begin[2 * edge + (column ? 0 : 1)]];
      const std::vector<double>& costs = column ? matrix.by_column : matrix.by_row;
      const size_t n = column ? matrix.rows : matrix.columns;
      base.resize(unary.size());
      for (size_t s = 0; s < unary.size(); ++s) base[s] = share * unary[s] - own[s];
      find_least(other, n, base.data(), base.size(), costs.data());
      const double least = *std::min_element(other, other + n);
      for (size_t x = 0; x < n; ++x) other[x] -= least;
    }
  }
}

void Dual::sweep_both(Graph& graph, int iterations, Clock::time_point deadline) const {
  for (int i = 0; i < iterations && Clock::now() < deadline; ++i) {
    sweep(graph, true);
    sweep(graph, false);
  }
}

void Dual::settle(Graph& graph, int iterations, Clock::time_point deadline) const {
  for (int done = 0; done < iterations; done += kPasses) {
    sweep_both(graph, kPasses - 1, deadline);
    const std::vector<double> before = graph.messages;
    sweep_both(graph, 1, deadline);
    double most = 0;
    for (size_t i = 0; i < before.size(); ++i)
      most = std::max(most, std::abs(graph.messages[i] - before[i]));
    if (most <= kStill) return;
  }
}

void Dual::iterate(int iterations, Clock::time_point deadline) {
  sweep_both(full_, iterations, deadline);
}

void Dual::iterate_classes(int iterations, Clock::time_point deadline) {
  const Colours colours = refined_colours(core_);
  if (at(colours.count) > core_.num_variables() / 2) return;
  Graph classes;
  std::vector<size_t> class_of(core_.edges.size());
  Memo<size_t> edge_classes;
  for (size_t e = 0; e < core_.edges.size(); ++e) {
    const CoreEdge& edge = core_.edges[e];
    const auto [found, missing] = edge_classes.try_emplace(
        {edge.table, colours.before[at(edge.u)], colours.before[at(edge.v)]},
        classes.matrix_of.size());
    if (missing) add_edge(classes, full_.matrix_of[e]);
    class_of[e] = found->second;
  }
  std::vector<char> seen(at(colours.count), false);
  for (size_t v = 0; v < core_.num_variables(); ++v) {
    if (seen[at(colours.now[v])]) continue;
    seen[at(colours.now[v])] = true;
    classes.unaries.push_back(full_.unaries[v]);
    classes.incidences.emplace_back();
    for (const auto& [edge, column] : full_.incidences[v])
      classes.incidences.back().push_back({class_of[edge], column});
  }
  settle(classes, iterations, deadline);
  for (size_t e = 0; e < core_.edges.size(); ++e) {
    const size_t length =
        matrices_[full_.matrix_of[e]].rows + matrices_[full_.matrix_of[e]].columns;
    const auto from =
        classes.messages.begin() + static_cast<ptrdiff_t>(classes.begin[2 * class_of[e]]);
    std::copy_n(from, length, full_.messages.begin() + static_cast<ptrdiff_t>(full_.begin[2 * e]));
  }
}

// After a backward sweep every variable's share is in messages to earlier ones. Moved into the
// edge, it makes min over v of theta'_e zero for every choice of u, so edges bound chains.
std::vector<std::vector<int64_t>> Dual::final_messages() const {
  const double limit = 0x1p60 / static_cast<double>(core_.edges.size() + 1);
  std::vector<std::vector<int64_t>> out(2 * core_.edges.size());
  std::vector<double> unary;
  for (size_t v = 0; v < core_.num_variables(); ++v) {
    if (full_.incidences[v].empty()) continue;
    const double share = gather(full_, v, unary);
    for (const auto& [edge, column] : full_.incidences[v]) {
      const size_t side = 2 * edge + (column ? 1 : 0);
      for (size_t s = 0; s < unary.size(); ++s) {
        const double message =
            full_.messages[full_.begin[side] + s] - (column ? share * unary[s] : 0);
        out[side].push_back(std::llround(std::clamp(message, -limit, limit)));
      }
    }
  }
  return out;
}

double Dual::estimate() const {
  double sum = core_.constant;
  std::vector<double> unary, base, of_row;
  for (size_t v = 0; v < core_.num_variables(); ++v) {
    if (full_.incidences[v].empty() && full_.unaries[v].empty()) continue;
    const double share = gather(full_, v, unary);
    double kept = 1;
    for (const auto& [edge, column] : full_.incidences[v]) {
      if (!column) continue;
      kept -= share;
      const Matrix& matrix = matrices_[full_.matrix_of[edge]];
      const double* const of_u = &full_.messages[full_.begin[2 * edge]];
      const double* const of_v = &full_.messages[full_.begin[2 * edge + 1]];
      base.resize(matrix.columns);
      for (size_t c = 0; c < matrix.columns; ++c) base[c] = share * unary[c] - of_v[c];
      of_row.resize(matrix.rows);
      find_least(of_row.data(), matrix.rows, base.data(), matrix.columns, matrix.by_column.data());
      double least = of_row[0] - of_u[0];
      for (size_t r = 1; r < matrix.rows; ++r) least = std::min(least, of_row[r] - of_u[r]);
      sum += least;
    }
    sum += kept * *std::ranges::min_element(unary);
  }
  return sum;
}

Bound Dual::bound() const {
  const std::vector<std::vector<int64_t>> messages = final_messages();
  Bound out;
  out.lower = static_cast<int64_t>(core_.constant);
  for (size_t v = 0; v < core_.num_variables(); ++v) {
    std::vector<int64_t>& reduced = out.reduced.emplace_back();
    for (const double cost : full_.unaries[v]) reduced.push_back(static_cast<int64_t>(cost));
    for (const auto& [edge, column] : full_.incidences[v])
      for (size_t s = 0; s < reduced.size(); ++s)
        reduced[s] += messages[2 * edge + (column ? 1 : 0)][s];
    if (reduced.empty()) continue;
    const int64_t least = *std::ranges::min_element(reduced);
    out.lower += least;
    for (int64_t& cost : reduced) cost -= least;
  }
  for (size_t e = 0; e < core_.edges.size(); ++e) {
    const Matrix& matrix = matrices_[full_.matrix_of[e]];
    std::vector<int64_t> of_row(matrix.rows, std::numeric_limits<int64_t>::max());
    std::vector<int64_t> of_column(matrix.columns, std::numeric_limits<int64_t>::max());
    for (size_t r = 0; r < matrix.rows; ++r)
      for (size_t c = 0; c < matrix.columns; ++c) {
        const int64_t cost = static_cast<int64_t>(matrix.by_row[r * matrix.columns + c]) -
                             messages[2 * e][r] - messages[2 * e + 1][c];
        of_row[r] = std::min(of_row[r], cost);
        of_column[c] = std::min(of_column[c], cost);
      }
    const int64_t least = *std::ranges::min_element(of_row);
    out.lower += least;
    for (size_t r = 0; r < matrix.rows; ++r)
      out.reduced[at(core_.edges[e].u)][r] += of_row[r] - least;
    for (size_t c = 0; c < matrix.columns; ++c)
      out.reduced[at(core_.edges[e].v)][c] += of_column[c] - least;
  }
  return out;
}

std::vector<int32_t> Dual::decode() const {
  std::vector<int32_t> chosen(core_.num_variables(), 0);
  std::vector<double> costs;
  // Returns the cost of each choice of a variable, given the others; later ones count by messages.
  const auto choose = [&](size_t v, bool messages) {
    costs = full_.unaries[v];
    for (const auto& [edge, column] : full_.incidences[v]) {
      const Matrix& matrix = matrices_[full_.matrix_of[edge]];
      const int32_t other = column ? core_.edges[edge].u : core_.edges[edge].v;
      const double* const row = messages && !column ? &full_.messages[full_.begin[2 * edge]]
                                : column ? &matrix.by_row[at(chosen[at(other)]) * matrix.columns]
                                         : &matrix.by_column[at(chosen[at(other)]) * matrix.rows];
      for (size_t s = 0; s < costs.size(); ++s) costs[s] += row[s];
    }
    const auto best = std::ranges::min_element(costs);
    if (!messages && *best >= costs[at(chosen[v])]) return false;
    chosen[v] = static_cast<int32_t>(best - costs.begin());
    return true;
  };
  for (size_t v = 0; v < chosen.size(); ++v)
    if (!full_.unaries[v].empty()) choose(v, true);
  for (bool better = true; better;) {
    better = false;
    for (size_t v = 0; v < chosen.size(); ++v)
      if (!full_.unaries[v].empty()) better |= choose(v, false);
  }
  return chosen;
}

}  // namespace medley::pbqp
