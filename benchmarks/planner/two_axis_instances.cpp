#include "planner/two_axis_instances.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "medley/base/error.h"

namespace medley {
namespace {

size_t at(int32_t index) { return static_cast<size_t>(index); }

// The part of the whole that each choice leaves of the compute; 1 where there is none.
std::vector<double> shares_of(const std::vector<int64_t>& unary) {
  int64_t whole = 0;
  for (const int64_t cost : unary)
    if (cost < kForbidden) whole = std::max(whole, cost);
  std::vector<double> out;
  for (const int64_t cost : unary)
    out.push_back(whole == 0 || cost >= kForbidden
                      ? 1
                      : static_cast<double>(cost) / static_cast<double>(whole));
  return out;
}

int64_t scaled(int64_t cost, double share) {
  return cost >= kForbidden ? kForbidden : std::llround(static_cast<double>(cost) * share);
}

int64_t plus(int64_t a, int64_t b) { return std::min(kForbidden, a + b); }

std::vector<int64_t> unary_of(const std::vector<int64_t>& first,
                              const std::vector<int64_t>& second) {
  const std::vector<double> shares = shares_of(second);
  std::vector<int64_t> out;
  for (const int64_t cost : first)
    for (size_t t = 0; t < second.size(); ++t)
      out.push_back(second[t] >= kForbidden ? kForbidden : scaled(cost, shares[t]));
  return out;
}

PbqpTable table_of(const PbqpTable& first,
                   const PbqpTable& second,
                   const std::vector<double>& shares) {
  PbqpTable out{first.rows * second.rows, first.columns * second.columns, {}};
  for (int32_t s = 0; s < first.rows; ++s)
    for (int32_t t = 0; t < second.rows; ++t)
      for (int32_t x = 0; x < first.columns; ++x)
        for (int32_t y = 0; y < second.columns; ++y)
          out.costs.push_back(
              plus(first.costs[at(s * first.columns + x)],
                   scaled(second.costs[at(t * second.columns + y)], shares[at(s)])));
  return out;
}

}  // namespace

Pbqp two_axis_instance(const Pbqp& first, const Pbqp& second) {
  MEDLEY_CHECK_EQ(first.num_variables(), second.num_variables());
  MEDLEY_CHECK_EQ(first.edges.size(), second.edges.size());
  Pbqp out;
  std::map<std::pair<int32_t, int32_t>, int32_t> unaries;
  for (size_t v = 0; v < first.unary_of.size(); ++v) {
    const int32_t a = first.unary_of[v], b = second.unary_of[v];
    const auto [found, missing] =
        unaries.try_emplace({a, b}, static_cast<int32_t>(out.unaries.size()));
    if (missing) out.unaries.push_back(unary_of(first.unaries[at(a)], second.unaries[at(b)]));
    out.unary_of.push_back(found->second);
  }
  std::map<std::array<int32_t, 3>, int32_t> tables;
  for (size_t e = 0; e < first.edges.size(); ++e) {
    const PbqpEdge &a = first.edges[e], &b = second.edges[e];
    MEDLEY_CHECK(a.u == b.u && a.v == b.v);
    const int32_t unary = first.unary_of[at(a.u)];
    const auto [found, missing] =
        tables.try_emplace({a.table, b.table, unary}, static_cast<int32_t>(out.tables.size()));
    if (missing)
      out.tables.push_back(table_of(first.tables[at(a.table)],
                                    second.tables[at(b.table)],
                                    shares_of(first.unaries[at(unary)])));
    out.edges.push_back({a.u, a.v, found->second});
  }
  verify(out);
  return out;
}

}  // namespace medley
