#pragma once

// How devices may share the rows of a batch and everything else: where the search of spmd.h begins,
// and what all of its problems for one such division have in common. Knows nothing of what is
// found.

#include <string>
#include <vector>

#include "medley/synthesis/mesh_layouts.h"
#include "medley/synthesis/request.h"
#include "medley/synthesis/spmd_ops.h"

namespace medley {

inline constexpr const char* kSpeedPart = "speed";

// On a mesh of nodes the nodes share, and the devices of a node are alike.
struct SpmdStart {
  size_t layout = 0;           // of the search
  std::vector<int64_t> rows;   // [place on the first axis]
  std::vector<double> shares;  // [place] of the part "speed"
  std::vector<double> memory;  // [place] of the part "memory"; empty: there is none
  bool operator==(const SpmdStart&) const = default;
};

// What all searches for one start and number of micro-batches have in common.
struct SpmdDivision {
  SpmdStart start;
  Plan outline;  // without decisions
  OpCatalogue catalogue;
};

class SpmdStarts {
 public:
  // `even`: all devices get equal shares. Requires: `request` has costs and an analysis, and
  // outlives this.
  SpmdStarts(const Request& request, bool even);

  const std::vector<MeshLayout>& layouts() const { return layouts_; }
  const std::vector<double>& speeds(size_t layout) const { return speeds_[layout]; }

  // Rows and shares by speed first.
  const std::vector<SpmdStart>& of(size_t layout) const { return starts_[layout]; }
  // Of a plan of one axis.
  SpmdStart of(const Plan& plan) const;
  // Where devices differ in memory, what is stored may be divided by it, too.
  SpmdStart with_memory(SpmdStart start) const;
  SpmdDivision divide(const SpmdStart& start, int64_t microbatches, SpmdPricing pricing = {}) const;

 private:
  std::vector<SpmdStart> find(size_t layout) const;
  Plan outline(const SpmdStart& start, int64_t microbatches) const;

  const Request& request_;
  const bool even_;
  const std::vector<MeshLayout> layouts_;
  std::vector<std::vector<double>> speeds_;     // [layout][device]
  std::vector<std::vector<SpmdStart>> starts_;  // [layout]
};

}  // namespace medley
