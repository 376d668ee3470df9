#pragma once

// Selects columns, and the amount of each, that do most rows on the available devices: a linear
// program with one row per pool, solved by Clp. Knows no chains and no time.
//
//   most  sum of rows_j x_j     sum of devices_jk x_j <= devices_k for each pool k     x_j >= 0
//         - M y                 sum of x_j + y >= least number of columns                y >= 0
//
// Prices give the worth of a device of each pool, and of a column as such, since a least number is
// required. At these prices no column has more rows than the worth of its devices less its own. All
// devices, less the least number of columns, are worth the total rows. Missing columns count M
// times the most rows of a column, so a solution always exists.

#include <vector>

namespace medley {

struct MasterColumn {
  std::vector<int> devices;  // [pool], not all 0
  double rows = 0;
};

struct MasterSolution {
  double rows = 0;             // minus the penalty of missing columns
  std::vector<double> prices;  // [pool] rows per device, not negative
  double column_price = 0;     // per column, not negative
  std::vector<double> shares;  // [column] x
};

// The result is deterministic.
MasterSolution solve_master(const std::vector<int>& devices,
                            const std::vector<MasterColumn>& columns,
                            int least_columns = 0);

}  // namespace medley
