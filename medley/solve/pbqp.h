#pragma once

// The pairwise discrete problem behind SPMD synthesis (partitioned boolean quadratic programming).
// Picks one choice per variable and minimises the sum of the costs of choices and of pairs of
// choices along edges. Knows nothing of ops, placements or devices.
//
//   cost(x) = sum_v unary_v[x_v] + sum_(u,v) table_uv[x_u, x_v]
//
// Costs are integers (times in tenths of a ns). Equal parts of a problem therefore give bitwise
// equal tables and are solved once.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "medley/base/at.h"

namespace medley {

// Costs at or above it are forbidden. Sums of a few thousand of them do not overflow.
inline constexpr int64_t kForbidden = int64_t{1} << 50;

struct PbqpTable {
  int32_t rows = 0, columns = 0;
  std::vector<int64_t> costs;  // row-major, all >= 0
  bool operator==(const PbqpTable&) const = default;
};

struct PbqpEdge {
  int32_t u = 0, v = 0;  // variables, u < v; u picks the row, v the column. Parallel edges add up.
  int32_t table = 0;
};

// Variables that share a unary, and edges that share a table, are recognised by index. The solver
// also finds equal ones with different indices.
struct Pbqp {
  std::vector<std::vector<int64_t>> unaries;  // distinct
  std::vector<PbqpTable> tables;              // distinct
  std::vector<int32_t> unary_of;              // [variable]
  std::vector<PbqpEdge> edges;

  int num_variables() const { return static_cast<int>(unary_of.size()); }
  int num_choices(int variable) const {
    return static_cast<int>(unaries[at(unary_of[at(variable)])].size());
  }
};

// Throws Error(kUs) if an index or a size does not fit, or a cost is negative.
void verify(const Pbqp& problem);

// Returns the cost of one choice per variable; at least kForbidden if any is forbidden.
int64_t cost(const Pbqp& problem, std::span<const int32_t> choices);

enum class PbqpMethod : uint8_t {
  kAuto,        // elimination if it is little work, else the lifted dual; if that proves nothing
                // soon, elimination within the caps, or the dual until time is up
  kEliminate,   // dead ends, then exact elimination
  kLifted,      // dual ascent, then a reduced-cost window
  kAStar,       // best-first search (HAP's method)
  kExhaustive,  // for tests
};

struct PbqpOptions {
  PbqpMethod method = PbqpMethod::kAuto;
  int64_t table_cap = 20'000'000;  // entries of one joint table; kEliminate throws beyond it
  int64_t work_cap = 200'000'000;  // entries of all distinct joint tables
  int64_t window_cap = 300'000;    // entries of one joint table within a window
  // Limit of rounds if dual ascent is the last method. The best known answer is then returned,
  // unproved.
  int rounds = 1'000'000;
  // After this time the best known answer is returned, unproved; without one, solve() throws.
  // nullopt: no limit, for results that do not depend on machine load.
  std::optional<double> seconds = 30;
};

struct PbqpSolution {
  std::vector<int32_t> choices;
  int64_t cost = 0;                       // cost of `choices`
  int64_t lower_bound = 0;                // for all assignments; equals cost if optimal
  PbqpMethod method = PbqpMethod::kAuto;  // method of the answer
  int64_t largest_table = 0, work = 0;    // entries
  int dead_ends = 0;                      // choices in no best assignment
  double seconds = 0;
};

// Returns nullopt if every assignment is forbidden. Throws Error(kCaller) if a limit of the options
// leaves no answer. Deterministic except under the time limit. Requires: verify(problem) passes.
std::optional<PbqpSolution> solve(const Pbqp& problem, const PbqpOptions& options = {});

}  // namespace medley
