#pragma once

// The decisions of a planner or of a user: the work of each device. Stored as JSON
// (docs/formats/plan.md). Knows nothing of its search or of its execution.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/infeasible.h"
#include "medley/cluster/cluster.h"
#include "medley/graph/graph.h"
#include "medley/schedule/choice.h"
#include "medley/sharding/parts.h"

namespace medley {

// A mesh: named axes, sizes, and device names in row-major order.
struct Mesh {
  std::vector<std::string> axes;
  std::vector<int64_t> shape;
  std::vector<std::string> devices;
  bool operator==(const Mesh&) const = default;
};

// Maps names to texts; "*" on one axis leaves that axis open. Keys are stable names (see
// stable_names) or names of inputs, with "*" for any run of characters. ChoiceFinder (plan/match.h)
// selects the key.
using Choices = std::map<std::string, std::string>;

// Values that a stage recomputes in its backward phase (prepare/recompute.h).
inline constexpr std::array<std::string_view, 3> kRecompute{"none", "all", "blocks"};

// Texts (plan/texts.h), one per axis of the mesh joined by " x ". Placements: "R", "P", "S(<dim>,
// <part>)" or "S(<dim>.<factor>, <part>)". Choices: "replicate", "linear {<group>}", "<label>
// <part>", "<label>.<factor> <part>", "composite <label> <part>".
struct Stage {
  Mesh mesh;
  std::string first;  // stable name of the first forward op of the stage; "" for the first stage
  // Shares in which later stages divide the rows of a micro-batch over the first axis. Empty: every
  // device has all rows. The first stage uses its micro-batches' lengths.
  std::vector<double> rows;
  Choices placements;  // parameters and buffers in storage
  Choices batch;       // batch inputs; absent: "S(0, rows)" if the micro-batches have lengths,
                       // else "R"
  Choices ops;         // choices of ops
  Choices updates;     // optimizer, by parameter; absent: as the parameter
  std::string recompute = "none";  // one of kRecompute
  bool operator==(const Stage&) const = default;
};

struct Pipeline : ScheduleChoice {
  std::vector<Microbatch> microbatches;
  std::vector<Stage> stages;
  bool operator==(const Pipeline&) const = default;
};

inline PipelineSize size_of(const Pipeline& pipeline) {
  return {static_cast<int>(pipeline.stages.size()), static_cast<int>(pipeline.microbatches.size())};
}
inline PipelineOrder order_of(const Pipeline& pipeline) {
  return order_of(pipeline, size_of(pipeline));
}

// Result of the search that made a plan: its distance from a lower bound.
struct StepBound {
  int64_t step_ns = 0;   // the plan's, by the simulator
  int64_t least_ns = 0;  // lower bound of the search; at most `step_ns`
  // Returns the largest share of the step by which another plan may be shorter.
  double gap() const { return 1 - static_cast<double>(least_ns) / static_cast<double>(step_ns); }
  bool operator==(const StepBound&) const = default;
};

// Values of `loss_over`: [0] the whole batch, [1] the mean over micro-batches.
inline constexpr std::string_view kLossOver[] = {"batch", "microbatches"};

struct Plan {
  std::string strategy;    // its planner's; "" if written by hand
  std::string graph_hash;  // "" in a plan written by hand: not checked
  std::string cluster_hash;
  int64_t global_batch = 0;
  // Whether the loss is the mean over micro-batches, each a batch of its own. Only then may rows
  // depend on each other (batch norm), as with PyTorch's gradient accumulation.
  bool loss_over_microbatches = false;
  std::vector<Part> parts;
  // Pipelines that update a parameter: kAllOwners, or a part with an entry per pipeline
  // (plan/owners.h). Absent: all.
  Choices owners;
  std::vector<Pipeline> pipelines;
  // [device type] dtype that replaces bf16. Absent: as in the cluster.
  std::map<std::string, DType> bf16_as{};
  std::optional<StepBound> bound{};  // absent: unknown
  int tolerate_node_loss = 0;        // number of nodes that may be lost without losing state
  bool operator==(const Plan&) const = default;
};

// Returns the dtype in which a device type computes bf16 under a plan.
inline DType bf16_as(const Plan& plan, const DeviceKind& kind) {
  const auto found = plan.bf16_as.find(kind.name);
  return found == plan.bf16_as.end() ? kind.bf16_as : found->second;
}

// Returns the pipeline of a plan with one pipeline. Requires: the plan is one.
const Pipeline& only_pipeline(const Plan& plan);
Pipeline& only_pipeline(Plan& plan);

// Returns the micro-batches with the lengths of a stage.
std::vector<Microbatch> microbatches_of(const Pipeline& pipeline, size_t stage);

// Reserved parts: the lengths of the micro-batches, and equal shares.
inline constexpr std::string_view kRows = "rows";
inline constexpr std::string_view kEven = "even";
inline bool is_reserved_part(std::string_view name) { return name == kRows || name == kEven; }
// Owner value: every pipeline updates the parameter.
inline constexpr std::string_view kAllOwners = "all";
// Upper bound of rows and lengths.
inline constexpr int64_t kMaxLength = int64_t{1} << 40;
// A share is 0 or within these limits, so proportions divide any extent accurately.
inline constexpr double kMinShare = 1e-9, kMaxShare = 1e9;
inline bool is_share(double share) {
  return share == 0 || (share >= kMinShare && share <= kMaxShare);
}

// Prints a form that parses back equal, without members that have their default.
std::string print(const Plan& plan);
// Throws Error(kCaller) "<file>: <place>: found ..., expected ..." for text that is no plan of this
// version.
Plan parse_plan(std::string_view json, std::string_view file);
// Returns the SHA-256 of the printed plan as 64 hex digits.
std::string hash(const Plan& plan);

// Throws Error(kCaller) "<place>: found ..., expected ..." with the first reason why the plan
// cannot be run. Reasons are another graph or cluster, unknown devices, inconsistent rows, names
// without a match, several micro-batches with cross-sample dependence, and unsupported features.
// `coupling`: result of row_coupling() (sharding/coupling.h). complete() (program/) checks the keys
// of `ops` and their texts.
void verify(const Plan& plan,
            const Graph& graph,
            const Cluster& cluster,
            const std::string& coupling = "");
// Throws if the plan is for another graph; needs no cluster.
void verify_graph_hash(const Plan& plan, const Graph& graph);

}  // namespace medley
