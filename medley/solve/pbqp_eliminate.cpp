#include "medley/solve/pbqp_eliminate.h"
#include "medley/base/at.h"

#include <algorithm>

namespace medley::pbqp {
namespace {

struct Factor {
  int32_t table = 0;
  std::vector<int32_t> scope;  // ascending
};

// A factor with the eliminated variable first, then its part of the result's dimensions.
struct Operand {
  std::vector<double> costs;
  size_t stride_of_choice = 0;
  std::vector<size_t> strides;  // [dimension of the result], 0 if independent of it
};

Operand operand_of(const Table& table,
                   const std::vector<int32_t>& scope,
                   int32_t variable,
                   const std::vector<int32_t>& result) {
  const size_t rank = scope.size();
  std::vector<size_t> strides(rank, 1);
  for (size_t d = rank - 1; d-- > 0;) strides[d] = strides[d + 1] * at(table.sizes[d + 1]);
  const size_t own = at(std::ranges::find(scope, variable) - scope.begin());
  std::vector<size_t> order{own};
  for (size_t d = 0; d < rank; ++d)
    if (d != own) order.push_back(d);
  Operand out;
  out.costs.resize(table.costs.size());
  std::vector<size_t> index(rank, 0);
  size_t from = 0;
  for (double& cost : out.costs) {
    cost = table.costs[from];
    for (size_t d = rank; d-- > 0;) {
      from += strides[order[d]];
      if (++index[d] < at(table.sizes[order[d]])) break;
      from -= strides[order[d]] * index[d];
      index[d] = 0;
    }
  }
  out.strides.assign(result.size(), 0);
  size_t stride = 1;
  for (size_t d = rank; d-- > 1;) {
    const auto dimension = std::ranges::lower_bound(result, scope[order[d]]) - result.begin();
    out.strides[at(dimension)] = stride;
    stride *= at(table.sizes[order[d]]);
  }
  out.stride_of_choice = stride;
  return out;
}

// Computes the minimum over the choices for one row of the result: its whole last dimension.
void minimum_of_row(const std::vector<Operand>& operands,
                    const std::vector<size_t>& offsets,
                    size_t num_choices,
                    std::span<double> row,
                    std::span<double> sums) {
  std::ranges::fill(row, kNever);
  const size_t n = row.size();
  for (size_t k = 0; k < num_choices; ++k) {
    double base = 0;
    const double *first = nullptr, *second = nullptr;
    bool summed = false;
    for (size_t i = 0; i < operands.size(); ++i) {
      const double* const costs = &operands[i].costs[offsets[i] + k * operands[i].stride_of_choice];
      if (operands[i].strides.empty() || operands[i].strides.back() == 0) {
        base += *costs;
      } else if (!first) {
        first = costs;
      } else if (!second) {
        second = costs;
      } else {
        if (!summed)
          for (size_t j = 0; j < n; ++j) sums[j] = costs[j];
        else
          for (size_t j = 0; j < n; ++j) sums[j] += costs[j];
        summed = true;
      }
    }
    if (summed) {
      for (size_t j = 0; j < n; ++j) {
        const double cost = (base + sums[j]) + (first[j] + second[j]);
        row[j] = cost < row[j] ? cost : row[j];
      }
    } else if (second) {
      for (size_t j = 0; j < n; ++j) {
        const double cost = base + (first[j] + second[j]);
        row[j] = cost < row[j] ? cost : row[j];
      }
    } else if (first) {
      for (size_t j = 0; j < n; ++j) {
        const double cost = base + first[j];
        row[j] = cost < row[j] ? cost : row[j];
      }
    } else {
      for (size_t j = 0; j < n; ++j) row[j] = base < row[j] ? base : row[j];
    }
  }
}

Table minimum_over(size_t num_choices,
                   const std::vector<Operand>& operands,
                   const std::vector<int32_t>& sizes) {
  size_t entries = 1;
  for (const int32_t size : sizes) entries *= at(size);
  Table out{sizes, std::vector<double>(entries)};
  const size_t rank = sizes.size(), row = rank == 0 ? 1 : at(sizes.back());
  std::vector<size_t> offsets(operands.size(), 0), index(rank, 0);
  std::vector<double> sums(row);
  for (size_t begin = 0; begin < entries; begin += row) {
    minimum_of_row(operands, offsets, num_choices, std::span(out.costs).subspan(begin, row), sums);
    for (size_t d = rank == 0 ? 0 : rank - 1; d-- > 0;) {
      const bool carry = ++index[d] == at(sizes[d]);
      for (size_t i = 0; i < operands.size(); ++i) {
        offsets[i] += operands[i].strides[d];
        if (carry) offsets[i] -= operands[i].strides[d] * index[d];
      }
      if (!carry) break;
      index[d] = 0;
    }
  }
  return out;
}

class Eliminator {
 public:
  Eliminator(TablePool& pool, const Core& core) : pool_(pool), core_(core) {
    factors_of_.resize(core.num_variables());
    for (size_t v = 0; v < core.num_variables(); ++v)
      if (core.unary[v] >= 0) add_factor({core.unary[v], {static_cast<int32_t>(v)}});
    for (const CoreEdge& edge : core.edges) add_factor({edge.table, {edge.u, edge.v}});
  }

  Elimination run(const EliminationOrder& order, Clock::time_point deadline) {
    for (const int32_t v : order.variables) {
      if (Clock::now() >= deadline) {
        out_.outcome = Elimination::Outcome::kOutOfTime;
        return std::move(out_);
      }
      if (!eliminate(v)) {
        out_.outcome = Elimination::Outcome::kInfeasible;
        return std::move(out_);
      }
    }
    out_.cost += core_.constant;
    choose();
    return std::move(out_);
  }

 private:
  void add_factor(Factor factor) {
    for (const int32_t v : factor.scope)
      factors_of_[at(v)].push_back(static_cast<int32_t>(factors_.size()));
    factors_.push_back(std::move(factor));
  }

  // Returns false if no choice is allowed, for any choices of the neighbours.
  bool eliminate(int32_t v) {
    const std::vector<int32_t> taken = factors_of_[at(v)];
    std::vector<int32_t> scope;
    for (const int32_t f : taken)
      for (const int32_t n : factors_[at(f)].scope) {
        if (n == v) continue;
        scope.push_back(n);
        std::erase(factors_of_[at(n)], f);
      }
    std::ranges::sort(scope);
    scope.erase(std::ranges::unique(scope).begin(), scope.end());
    const auto [found, missing] = memo_.try_emplace(key_of(v, taken, scope));
    if (missing) found->second = pool_.add_less_minimum(joint_minimum(v, taken, scope));
    const auto [table, least] = found->second;
    if (least >= kNever) return false;
    out_.cost += least;
    taken_.emplace_back(v, taken);
    if (!scope.empty()) add_factor({table, std::move(scope)});
    return true;
  }

  std::vector<int32_t> key_of(int32_t v,
                              const std::vector<int32_t>& taken,
                              const std::vector<int32_t>& scope) const {
    std::vector<std::vector<int32_t>> parts;
    for (const int32_t f : taken) {
      std::vector<int32_t> part{factors_[at(f)].table};
      for (const int32_t n : factors_[at(f)].scope)
        part.push_back(
            n == v ? -1 : static_cast<int32_t>(std::ranges::lower_bound(scope, n) - scope.begin()));
      parts.push_back(std::move(part));
    }
    std::ranges::sort(parts);
    std::vector<int32_t> key{static_cast<int32_t>(core_.choices[at(v)].size())};
    for (const int32_t n : scope) key.push_back(static_cast<int32_t>(core_.choices[at(n)].size()));
    for (const std::vector<int32_t>& part : parts) {
      key.push_back(-2);
      key.insert(key.end(), part.begin(), part.end());
    }
    return key;
  }

  Table joint_minimum(int32_t v,
                      const std::vector<int32_t>& taken,
                      const std::vector<int32_t>& scope) {
    std::vector<int32_t> sizes;
    int64_t entries = static_cast<int64_t>(core_.choices[at(v)].size());
    for (const int32_t n : scope) {
      sizes.push_back(static_cast<int32_t>(core_.choices[at(n)].size()));
      entries *= sizes.back();
    }
    out_.work += entries;
    out_.largest_table = std::max(out_.largest_table, entries);
    std::vector<Operand> operands;
    for (const int32_t f : taken)
      operands.push_back(operand_of(pool_[factors_[at(f)].table], factors_[at(f)].scope, v, scope));
    return minimum_over(core_.choices[at(v)].size(), operands, sizes);
  }

  // Goes backwards: all others in the scope of a variable's factors were eliminated later.
  void choose() {
    std::vector<int32_t> position(core_.num_variables(), 0);
    for (auto step = taken_.rbegin(); step != taken_.rend(); ++step) {
      const auto& [v, taken] = *step;
      std::vector<double> sums(core_.choices[at(v)].size(), 0);
      for (const int32_t f : taken) {
        const Table& table = pool_[factors_[at(f)].table];
        size_t offset = 0, stride = 1, own = 0;
        for (size_t d = table.sizes.size(); d-- > 0; stride *= at(table.sizes[d])) {
          const int32_t n = factors_[at(f)].scope[d];
          if (n == v)
            own = stride;
          else
            offset += stride * at(position[at(n)]);
        }
        for (size_t k = 0; k < sums.size(); ++k) sums[k] += table.costs[offset + k * own];
      }
      position[at(v)] = static_cast<int32_t>(std::ranges::min_element(sums) - sums.begin());
    }
    for (size_t v = 0; v < core_.num_variables(); ++v)
      out_.choices.push_back(core_.choices[v][at(position[v])]);
  }

  TablePool& pool_;
  const Core& core_;
  std::vector<Factor> factors_;
  std::vector<std::vector<int32_t>> factors_of_;                 // [variable], not yet taken
  std::vector<std::pair<int32_t, std::vector<int32_t>>> taken_;  // variable, its factors
  Memo<std::pair<int32_t, double>> memo_;
  Elimination out_;
};

}  // namespace

Elimination eliminate(TablePool& pool,
                      const Core& core,
                      const EliminationOrder& order,
                      Clock::time_point deadline) {
  return Eliminator(pool, core).run(order, deadline);
}

}  // namespace medley::pbqp
