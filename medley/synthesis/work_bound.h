#pragma once

#include <map>
#include <string>
#include <vector>

#include "medley/synthesis/request.h"

namespace medley {

// Lower bounds of the step time of every plan of a request's graph and rows. All devices compute
// all the time, every op at its best rate for its size, without communication. Under a profile the
// best rate is that of the op's class over all measured sizes (CostModel::least).
class LeastWork {
 public:
  // Uses the device types of the request. Requires: it has costs and an analysis.
  explicit LeastWork(const Request& request);
  // `devices`: the number of each device type, by name.
  Nanoseconds bound(const std::map<std::string, int>& devices) const;

 private:
  std::map<std::string, std::vector<double>> times_;  // [device type][op] ns
};

// Returns the bound for all devices of the request.
Nanoseconds work_bound(const Request& request);

}  // namespace medley
