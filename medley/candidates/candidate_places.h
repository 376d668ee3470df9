#pragma once

// Candidates for a plan and quantities that depend only on the request: locations of stages, memory
// and bytes over cuts, each computed once. A candidate gives the layers, pool and device count of
// each stage. Knows no solution of a stage.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "medley/candidates/equivalent_nodes.h"
#include "medley/candidates/pools.h"
#include "medley/candidates/stage_options.h"

namespace medley {

struct PipelineCandidate {
  int64_t microbatches = 1;
  std::vector<StageRange> stages;
  std::vector<StageConfig> configs;  // [stage]
  int64_t rows = 0;                  // per step; 0: all rows of the request
  auto operator<=>(const PipelineCandidate&) const = default;
};

// Selects stages that are placed close together. With kNeighbours these are stages of one pipeline,
// which exchange activations in every micro-batch. With kSameLayers these are stages with the same
// layers, which sum gradients once a step.
//
//   nodes of two devices       | . . | . . |
//   kNeighbours                |0/0 0/1|1/0 1/1|
//   kSameLayers                |0/0 1/0|0/1 1/1|
enum class Together : uint8_t { kNeighbours, kSameLayers };

// Describes pipelines that divide the devices and the rows of a step.
struct PlanCandidate {
  std::vector<PipelineCandidate> pipelines;
  Together together = Together::kNeighbours;
  auto operator<=>(const PlanCandidate&) const = default;
};
using PlanDevices = std::vector<std::vector<std::vector<int>>>;  // [pipeline][stage]

// Returns whether no earlier element equals all[number].
template <typename T>
bool is_first_identical(const std::vector<T>& all, size_t number) {
  const auto own = all.begin() + static_cast<std::ptrdiff_t>(number);
  return std::find(all.begin(), own, *own) == own;
}

// Returns the bytes that a device of a stage needs with `in_flight` micro-batches.
inline Bytes bytes_needed(const StageOption& option, int in_flight) {
  return option.persistent + option.transient + option.saved * in_flight;
}

struct CandidatePlaces {
  // Requires: all outlive this.
  CandidatePlaces(const Request& asked,
                  const std::vector<DevicePool>& own_pools,
                  const std::vector<Layer>& own_layers);

  const Topology& topology() const { return request.costs->topology(); }
  // Returns the rows per micro-batch, the larger number if two sizes exist.
  int64_t rows(int64_t microbatches) const;
  // Returns the rows of a step.
  int64_t rows_of(const PipelineCandidate& pipeline) const;
  // Returns the total bytes of `values` with `rows` rows.
  Bytes bytes(const std::vector<ValueId>& values, int64_t rows) const;
  // Returns the bytes over the cut after each layer, for micro-batches of `rows` rows.
  std::vector<CutBytes> cuts(int64_t rows) const;
  std::vector<CutBytes> cuts(const PipelineCandidate& pipeline) const;
  // Returns how many of `most` micro-batches fit next to `beside` bytes on each device of the
  // stage. If the pipeline is not alone, returns 0 unless one micro-batch and its gradient-sum
  // buffers fit.
  int room(const StageOption& option,
           const StageRange& range,
           int most,
           bool is_alone,
           Bytes beside = {}) const;
  // Returns the time per step in which stages of a pipeline exchange gradients of shared
  // parameters. Each stage sends its part to all others; messages between two pools share a link.
  // Returns nullopt if a link is missing.
  std::optional<Nanoseconds> exchange(const std::vector<StageRange>& ranges) const;

  // Returns the first mesh of this size in the pool; such meshes are interchangeable.
  StageMesh mesh(const StageRange& range) const;
  PlanDevices devices_of(const PlanCandidate& candidate) const;
  // Returns the candidate in its other device mapping; nullopt if both are identical.
  std::optional<PlanCandidate> placed_otherwise(PlanCandidate candidate) const;
  StageQuery query(const PipelineCandidate& pipeline, size_t stage) const;

  const Request& request;
  const std::vector<DevicePool>& device_pools;
  const std::vector<Layer>& layers;
  std::vector<PipelinePool> pools;
  std::vector<std::vector<std::optional<LinkCurve>>> links;
  std::map<int, EquivalentNodes> equivalent_nodes;  // only of heterogeneous pools
  std::vector<Bytes> gradients;                     // [layer] of its parameters
  // Describes a parameter that several layers read.
  struct Tied {
    Bytes bytes;
    std::set<int> layers;
  };
  std::vector<Tied> tied;
  Bytes shared;  // parameters that the first and the last layer read
};

}  // namespace medley
