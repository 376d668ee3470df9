#pragma once

// Divisions of rows and parts among devices, from which the search of spmd.h begins, and the shared
// data of all problems for one division. Knows nothing of results.

#include <string>
#include <vector>

#include "medley/synthesis/mesh_layouts.h"
#include "medley/synthesis/request.h"
#include "medley/synthesis/spmd_ops.h"

namespace medley {

inline constexpr const char* kSpeedPart = "speed";

// On a mesh of nodes the nodes have shares, and the devices of a node are equal.
struct SpmdStart {
  size_t layout = 0;           // index in the search
  std::vector<int64_t> rows;   // [place on the first axis]
  std::vector<double> shares;  // [place] of the part "speed"
  std::vector<double> memory;  // [place] of the part "memory"; empty: there is none
  bool operator==(const SpmdStart&) const = default;
};

// Shared data of all searches for one start and number of micro-batches.
struct SpmdDivision {
  SpmdStart start;
  Plan outline;  // without decisions
  OpCatalogue catalogue;
};

class SpmdStarts {
 public:
  // `even`: gives all devices equal shares. Requires: `request` has costs and an analysis, and
  // outlives this.
  SpmdStarts(const Request& request, bool even);

  const std::vector<MeshLayout>& layouts() const { return layouts_; }
  const std::vector<double>& speeds(size_t layout) const { return speeds_[layout]; }

  // Returns the starts; the first has rows and shares by speed.
  const std::vector<SpmdStart>& of(size_t layout) const { return starts_[layout]; }
  // Returns the start of a plan with a 1-D mesh.
  SpmdStart of(const Plan& plan) const;
  // Adds shares by memory for stored values, if devices differ in memory.
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
