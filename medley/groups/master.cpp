#include "medley/groups/master.h"

#include <ClpSimplex.hpp>
#include <algorithm>

#include "medley/base/error.h"

namespace medley {

namespace {

constexpr double kMissing = 4;  // M

}  // namespace

MasterSolution solve_master(const std::vector<int>& devices,
                            const std::vector<MasterColumn>& columns,
                            int least_columns) {
  MasterSolution solution;
  solution.prices.assign(devices.size(), 0);
  solution.shares.assign(columns.size(), 0);
  // Clp's tolerances are absolute, so rows are scaled by the largest column.
  double most = 0;
  for (const MasterColumn& column : columns) most = std::max(most, column.rows);
  if (most <= 0) return solution;
  ClpSimplex clp;
  clp.setLogLevel(0);
  clp.setPerturbation(100);  // off
  const bool counted = least_columns > 0;
  const auto last = static_cast<int>(devices.size());  // row of the column count
  clp.resize(last + (counted ? 1 : 0), 0);
  if (counted) {
    clp.setRowLower(last, least_columns);
    clp.setRowUpper(last, COIN_DBL_MAX);
  }
  for (size_t k = 0; k < devices.size(); ++k) {
    clp.setRowLower(static_cast<int>(k), -COIN_DBL_MAX);
    clp.setRowUpper(static_cast<int>(k), devices[k]);
  }
  for (const MasterColumn& column : columns) {
    std::vector<int> rows;
    std::vector<double> values;
    for (size_t k = 0; k < devices.size(); ++k)
      if (column.devices[k] > 0) {
        rows.push_back(static_cast<int>(k));
        values.push_back(column.devices[k]);
      }
    MEDLEY_CHECK(!rows.empty());
    if (counted) {
      rows.push_back(last);
      values.push_back(1);
    }
    clp.addColumn(static_cast<int>(rows.size()),
                  rows.data(),
                  values.data(),
                  0,
                  COIN_DBL_MAX,
                  -column.rows / most);
  }
  const double one = 1;
  if (counted) clp.addColumn(1, &last, &one, 0, least_columns, kMissing);
  clp.primal();
  MEDLEY_CHECK(clp.isProvenOptimal());
  solution.rows = -clp.objectiveValue() * most;
  for (size_t k = 0; k < devices.size(); ++k)
    solution.prices[k] = std::max(0.0, -clp.dualRowSolution()[k] * most);
  if (counted) solution.column_price = std::max(0.0, clp.dualRowSolution()[last] * most);
  for (size_t c = 0; c < columns.size(); ++c)
    solution.shares[c] = std::max(0.0, clp.primalColumnSolution()[c]);
  return solution;
}

}  // namespace medley
