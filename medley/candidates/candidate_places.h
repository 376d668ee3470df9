#pragma once

// A candidate for a plan: of each pipeline, the layers of each stage, and on how many devices of
// which pool it runs. Of the layers and devices of a request, places of stages, room in memory and
// bytes over cuts; all found once. Knows no solution of a stage.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "medley/candidates/alike_nodes.h"
#include "medley/candidates/pools.h"
#include "medley/candidates/stage_options.h"

namespace medley {

struct PipelineCandidate {
  int64_t microbatches = 1;
  std::vector<StageRange> stages;
  std::vector<StageConfig> configs;  // [stage]
  int64_t rows = 0;                  // of a step; 0: all of the request
  auto operator<=>(const PipelineCandidate&) const = default;
};

// Which stages of several pipelines are near each other: those of one pipeline, which send each
// other activations in every micro-batch, or those that hold the same layers, which sum gradients
// once a step.
//
//   nodes of two devices       | . . | . . |
//   kNeighbours                |0/0 0/1|1/0 1/1|
//   kSameLayers                |0/0 1/0|0/1 1/1|
enum class Together : uint8_t { kNeighbours, kSameLayers };

// Pipelines that divide the devices and the rows of a step.
struct PlanCandidate {
  std::vector<PipelineCandidate> pipelines;
  Together together = Together::kNeighbours;
  auto operator<=>(const PlanCandidate&) const = default;
};
using PlanDevices = std::vector<std::vector<std::vector<int>>>;  // [pipeline][stage]

// Returns whether none before it is the same.
template <typename T>
bool is_first_alike(const std::vector<T>& all, size_t number) {
  const auto own = all.begin() + static_cast<std::ptrdiff_t>(number);
  return std::find(all.begin(), own, *own) == own;
}

// Returns the bytes that a device of a stage needs with so many micro-batches in flight.
inline Bytes bytes_needed(const StageOption& option, int in_flight) {
  return option.persistent + option.transient + option.saved * in_flight;
}

struct CandidatePlaces {
  // Requires: all outlive this.
  CandidatePlaces(const Request& asked,
                  const std::vector<DevicePool>& own_pools,
                  const std::vector<Layer>& own_layers);

  const Topology& topology() const { return request.costs->topology(); }
  // Returns the rows of the larger micro-batches, if they have two sizes.
  int64_t rows(int64_t microbatches) const;
  // Returns the rows of a step.
  int64_t rows_of(const PipelineCandidate& pipeline) const;
  // Returns the bytes of values with so many rows.
  Bytes bytes(const std::vector<ValueId>& values, int64_t rows) const;
  // Returns the bytes over the cut behind each layer, with so many rows in a micro-batch.
  std::vector<CutBytes> cuts(int64_t rows) const;
  std::vector<CutBytes> cuts(const PipelineCandidate& pipeline) const;
  // Returns for how many micro-batches a device of the stage has room, of so many, beside so many
  // bytes. Of one of several pipelines there is none without room for what it sums with them beside
  // one.
  int room(const StageOption& option,
           const StageRange& range,
           int most,
           bool is_alone,
           Bytes beside = {}) const;
  // Returns how long the stages of a pipeline exchange gradients of parameters that several of them
  // read, once a step. Each sends its part to all others, and messages from one pool to another
  // share a link. Nothing if there is none.
  std::optional<Nanoseconds> exchange(const std::vector<StageRange>& ranges) const;

  // Returns the first of the meshes of one size in a pool, which are interchangeable.
  StageMesh mesh(const StageRange& range) const;
  PlanDevices devices_of(const PlanCandidate& candidate) const;
  // Returns the same in its other placement; nothing if that is no other one.
  std::optional<PlanCandidate> placed_otherwise(PlanCandidate candidate) const;
  StageQuery query(const PipelineCandidate& pipeline, size_t stage) const;

  const Request& request;
  const std::vector<DevicePool>& device_pools;
  const std::vector<Layer>& layers;
  std::vector<PipelinePool> pools;
  std::vector<std::vector<std::optional<LinkCurve>>> links;
  std::map<int, AlikeNodes> alike_nodes;  // of pools that are not alike
  std::vector<Bytes> gradients;           // [layer] of its parameters
  // A parameter that several layers read.
  struct Tied {
    Bytes bytes;
    std::set<int> layers;
  };
  std::vector<Tied> tied;
  Bytes shared;  // of parameters that the first and the last layer read
};

}  // namespace medley
