#pragma once

// The connections of pipeline stages: their transfers, and the order of their calls. Knows nothing
// of ops.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "medley/lower/crossing.h"
#include "medley/lower/lower.h"
#include "medley/schedule/call_order.h"

namespace medley {

// One stage, decided but not yet lowered.
struct DecidedStage {
  Completed completed;
  std::vector<Microbatch> microbatches;  // with the stage's own lengths
  std::vector<int> devices;              // in the cluster, row-major over the mesh
  std::vector<int64_t> mesh;             // axis sizes
  int64_t batches = 0;                   // micro-batches, if each is a batch; of all pipelines
  int pipeline = 0;                      // in the plan
  int64_t first_row = 0;                 // its pipeline's, in the global batch
  std::vector<DType> bf16_as{};          // as in a LoweredStage
  int64_t fewest_classes = 0;            // see cross_entropy.h
  std::vector<int64_t> workspaces{};     // as in a LoweredStage
};

// The part of a parameter that a stage updates: an interval of one factor. Each device updates the
// part in its shard.
struct OwnedShare {
  int position = 0;
  IndexInterval interval;
  bool operator==(const OwnedShare&) const = default;
};
using OwnedShares = std::map<std::string, OwnedShare>;  // by parameter

// One stage's part in a gradient sync of gradients or new values (gradient_syncs.h).
struct StageSync {
  std::string name;
  std::vector<int> devices;  // in the cluster
  std::shared_ptr<const GradientSync> cells;
  // The stage's part of a tensor: the whole, or a share.
  struct End {
    Placement placement;
    std::optional<OwnedShare> share{};
    bool operator==(const End&) const = default;
  };
  struct Tensor {
    std::string parameter;
    std::optional<End> gives, takes;  // empty: it gives none, or takes none
  };
  std::vector<Tensor> tensors;  // all of the gradient sync
};

// The sum of a loss's normaliser over pipelines.
struct SummedNormaliser {
  std::vector<int> devices;  // all stages that read it
  bool counts = false;       // the first stage of a pipeline that reads it adds its own
};

// Returns the type in which devices sum a metric, in the symbols of a SymbolTable. A tensor of rows
// has those of the global batch; a carried one has as many as the plan says.
TensorType summed_type(const std::string& name,
                       const TensorType& type,
                       DType wire,
                       int64_t global_batch);

// The information of a stage about the others.
struct Connections {
  std::vector<std::pair<ValueId, Crossing>> receives;  // in the order of sending
  std::multimap<ValueId, Crossing> sends;
  std::vector<int> norm_devices;  // all stages with gradients; empty: it has the only ones
  std::vector<int> all_devices;   // all stages; empty: there is one
  DType loss = DType::kF32;
  std::map<std::string, TensorType> metrics;  // all stages' metrics, as devices sum them
  DType wire = DType::kBF16;                  // exchange type of bf16 values in all stages
  std::map<std::string, SummedNormaliser>
      normalisers;  // by Prepared::normalisers; empty for one pipeline
  // In posting order: of gradients, and of new values after all updates of their parameters.
  std::vector<StageSync> gradients, values;
  OwnedShares shares;  // parameters of which it updates a part
  StageOrder order;
};

// Returns all connections but gradient syncs. Requires: one stage of the pipeline sends each
// received name.
std::vector<Connections> connect(const std::vector<DecidedStage>& stages, const Plan& plan);

// Returns the connections of one stage to an imaginary neighbour with one device and whole values.
// One lane per phase and direction, with room for two micro-batches.
Connections connect_alone(const DecidedStage& stage);

// Returns the bytes of gradients in one all-reduce. A ring of n devices sends 2 (n - 1) messages in
// turn. The result is four times the bytes that the slowest network carries in their latencies.
int64_t bucket_bytes(const LowerOptions& options, const Cluster& cluster, size_t devices);

}  // namespace medley
