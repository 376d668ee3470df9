#pragma once

#include <map>
#include <string>
#include <vector>

#include "medley/synthesis/request.h"

namespace medley {

// Lower bounds of the step time of every plan of a request's graph and rows: all devices compute
// all the time, every op at the best rate that its size allows, and nothing is ever communicated.
// Under a profile the best rate is that of the op's class at any size that was measured
// (CostModel::least).
class LeastWork {
 public:
  // Of the kinds of the request's devices. Requires: it has costs and an analysis.
  explicit LeastWork(const Request& request);
  // `devices`: how many there are of each kind, by its name.
  Nanoseconds bound(const std::map<std::string, int>& devices) const;

 private:
  std::map<std::string, std::vector<double>> times_;  // of the kind, [op], in nanoseconds
};

// The same for all devices of the request.
Nanoseconds work_bound(const Request& request);

}  // namespace medley
