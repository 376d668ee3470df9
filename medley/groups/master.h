#pragma once

// Which columns, and how much of each, do most rows on the devices that there are: a linear program
// with one row for each pool, solved by Clp. Knows no chains and no time.
//
//   most  sum of rows_j x_j     sum of devices_jk x_j <= devices_k for each pool k     x_j >= 0
//         - M y                 sum of x_j + y >= least number of columns                y >= 0
//
// The prices of its solution are what a device of each pool is worth, and what a column is worth as
// such, as there have to be some: with these no column has more rows than its devices are worth
// less what it is itself, and all devices, less the least number of columns, are worth as many rows
// as are done. What is missing of that number counts as M times the most rows of a column, so that
// there always is a solution.

#include <vector>

namespace medley {

struct MasterColumn {
  std::vector<int> devices;  // [pool], not all 0
  double rows = 0;
};

struct MasterSolution {
  double rows = 0;             // less what is missing
  std::vector<double> prices;  // [pool] of a device in rows, none below 0
  double column_price = 0;     // of being a column, not below 0
  std::vector<double> shares;  // [column] x
};

// Deterministic.
MasterSolution solve_master(const std::vector<int>& devices,
                            const std::vector<MasterColumn>& columns,
                            int least_columns = 0);

}  // namespace medley
