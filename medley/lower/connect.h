#pragma once

// How the stages of pipelines hang together: what goes from which to which, and in what order they
// call their functions. Knows nothing of ops.

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
  std::vector<int> devices;              // of the cluster, row-major over the mesh
  std::vector<int64_t> mesh;             // sizes of its axes
  int64_t batches = 0;                   // micro-batches, if each is a batch; of all pipelines
  int pipeline = 0;                      // of the plan
  int64_t first_row = 0;                 // of its pipeline, in the global batch
  std::vector<DType> bf16_as{};          // as of a LoweredStage
  int64_t fewest_classes = 0;            // of cross_entropy.h
  std::vector<int64_t> workspaces{};     // as of a LoweredStage
};

// Of a parameter, what of it a stage updates: an interval of one of its factors, and of that each
// device what lies in its shard.
struct OwnedShare {
  int position = 0;
  IndexInterval interval;
  bool operator==(const OwnedShare&) const = default;
};
using OwnedShares = std::map<std::string, OwnedShare>;  // by parameter

// One stage's part in a relay of gradients, or of new values (relays.h).
struct StageRelay {
  std::string name;
  std::vector<int> devices;  // of the cluster
  std::shared_ptr<const Relay> cells;
  // How the stage has a tensor: the whole, or a share.
  struct End {
    State state;
    std::optional<OwnedShare> share{};
    bool operator==(const End&) const = default;
  };
  struct Tensor {
    std::string parameter;
    std::optional<End> gives, takes;  // nothing: it has none to give, or takes none
  };
  std::vector<Tensor> tensors;  // all of the relay
};

// The sum of a loss's weight over pipelines.
struct SummedWeight {
  std::vector<int> devices;  // of all stages that read it
  bool counts = false;       // the first stage of a pipeline that reads it adds its own
};

// The type in which devices sum a metric, in the symbols of a SymbolTable. Of a tensor of rows it
// has those of the global batch; of one that is carried, as many as the plan says.
TensorType summed_type(const std::string& name,
                       const TensorType& type,
                       DType wire,
                       int64_t global_batch);

// What a stage has to know of the others.
struct Connections {
  std::vector<std::pair<ValueId, Crossing>> receives;  // in the order in which they are sent
  std::multimap<ValueId, Crossing> sends;
  std::vector<int> norm_devices;  // of all stages that have gradients; empty: it has the only ones
  std::vector<int> all_devices;   // of all stages; empty: there is one
  DType loss = DType::kF32;
  std::map<std::string, TensorType> metrics;    // of all stages, as devices sum them
  DType wire = DType::kBF16;                    // what is bf16 is exchanged by all stages as this
  std::map<std::string, SummedWeight> weights;  // by Prepared::weights; none of one pipeline
  // In the order in which they are posted: of gradients, and of new values behind all updates of
  // their parameters.
  std::vector<StageRelay> gradients, values;
  OwnedShares shares;  // of parameters of which it updates a part
  StageOrder order;
};

// All but relays. Requires: what a stage receives under a name one stage of its pipeline sends.
std::vector<Connections> connect(const std::vector<DecidedStage>& stages, const Plan& plan);

// One stage whose neighbours are one imaginary device that has everything whole. A lane for each
// phase and direction, with room for two micro-batches.
Connections connect_alone(const DecidedStage& stage);

// Returns the bytes of gradients that are all-reduced at once. A ring of n devices sends 2 (n - 1)
// messages one after the other: four times their latencies' worth of bytes, on the slowest network.
int64_t bucket_bytes(const LowerOptions& options, const Cluster& cluster, size_t devices);

}  // namespace medley
