#pragma once

// Which columns, and how much of each, do most rows on the devices that there are: a linear program
// with one row for each pool, solved by Clp. Knows no chains and no time.
//
//   most  sum of rows_j x_j     sum of devices_jk x_j <= devices_k for each pool k     x_j >= 0
//
// The prices of its solution are what a device of each pool is worth: with these no column has more
// rows than its devices are worth, and all devices are worth as many rows as are done.

#include <vector>

namespace medley {

struct MasterColumn {
  std::vector<int> devices;  // [pool], not all 0
  double rows = 0;
};

struct MasterSolution {
  double rows = 0;
  std::vector<double> prices;  // [pool] of a device in rows, none below 0
  std::vector<double> shares;  // [column] x
};

// Deterministic.
MasterSolution solve_master(const std::vector<int>& devices,
                            const std::vector<MasterColumn>& columns);

}  // namespace medley
