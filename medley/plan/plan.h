#pragma once

// The decisions of a planner or of a person: who computes what, and how much of it. Stored as JSON
// (docs/formats/plan.md). Knows nothing of how it was found, nor of how it is run.

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

// By name, a text that says what to do with it; "*" on one axis leaves that axis open. Keys are
// stable names (see stable_names) or names of inputs, with "*" for any run of characters;
// ChoiceFinder (plan/match.h) says which key wins.
using Choices = std::map<std::string, std::string>;

// What a stage computes again in its backward phase rather than keep (prepare/recompute.h).
inline constexpr std::array<std::string_view, 3> kRecompute{"none", "all", "blocks"};

// Texts (plan/texts.h), one per axis of the mesh joined by " x ".
// States: "R", "P", "S(<dim>, <part>)" or "S(<dim>.<factor>, <part>)".
// Choices: "replicate", "linear {<group>}", "<label> <part>", "<label>.<factor> <part>",
// "composite <label> <part>".
struct Stage {
  Mesh mesh;
  std::string first;  // stable name of the first forward op of the stage; "" for the first stage
  // How later stages divide the rows of a micro-batch over the devices of their first axis: shares.
  // Empty: every device has all rows. The first stage has the lengths of its micro-batches.
  std::vector<double> rows;
  Choices states;   // of parameters and buffers: where they are stored
  Choices batch;    // of batch inputs; absent: "S(0, rows)" if the micro-batches have lengths,
                    // else "R"
  Choices ops;      // choices of ops
  Choices updates;  // of the optimizer's state and update, by parameter; absent: as the parameter
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

// What the search that made a plan showed: how far it may be from the best of what was searched.
struct StepBound {
  int64_t step_ns = 0;   // of the plan, by the simulator
  int64_t least_ns = 0;  // what no plan that was searched takes less than; at most `step_ns`
  // The share of the step by which another plan may be shorter at most.
  double gap() const { return 1 - static_cast<double>(least_ns) / static_cast<double>(step_ns); }
  bool operator==(const StepBound&) const = default;
};

// The names of `loss_over`: [0] the whole batch, [1] the mean over micro-batches.
inline constexpr std::string_view kLossOver[] = {"batch", "microbatches"};

struct Plan {
  std::string strategy;    // that made it; "" if written by hand
  std::string graph_hash;  // "" in a plan written by hand: not checked
  std::string cluster_hash;
  int64_t global_batch = 0;
  // The loss is the mean of the losses of micro-batches, each a batch of its own: their rows meet
  // in it only (batch norm), as where PyTorch accumulates gradients. Else it is that of the batch.
  bool loss_over_microbatches = false;
  std::vector<Part> parts;
  // Of several pipelines, which update a parameter: kAllOwners, or a part with an entry for each
  // pipeline (plan/owners.h). Absent: all.
  Choices owners;
  std::vector<Pipeline> pipelines;
  // By kind of device, what it computes where the graph says bf16. Absent: as the cluster says.
  std::map<std::string, DType> bf16_as{};
  std::optional<StepBound> bound{};  // nothing is known without
  int survive = 0;                   // of so many nodes any may be lost, and its state is there
  bool operator==(const Plan&) const = default;
};

// What a kind of device computes under a plan where the graph says bf16.
inline DType bf16_as(const Plan& plan, const DeviceKind& kind) {
  const auto found = plan.bf16_as.find(kind.name);
  return found == plan.bf16_as.end() ? kind.bf16_as : found->second;
}

// For what is about plans of one pipeline only. Requires: the plan is one.
const Pipeline& only_pipeline(const Plan& plan);
Pipeline& only_pipeline(Plan& plan);

// Returns the micro-batches as a stage divides them: with its own lengths.
std::vector<Microbatch> microbatches_of(const Pipeline& pipeline, size_t stage);

// The reserved parts: the lengths of the micro-batches, and equal shares.
inline constexpr std::string_view kRows = "rows";
inline constexpr std::string_view kEven = "even";
inline bool is_reserved_part(std::string_view name) { return name == kRows || name == kEven; }
// As an owner: every pipeline updates the parameter.
inline constexpr std::string_view kAllOwners = "all";
// No number of rows, and no length, is larger.
inline constexpr int64_t kMaxLength = int64_t{1} << 40;
// A share is 0 or lies between these, so that proportions are exact enough to divide any extent.
inline constexpr double kMinShare = 1e-9, kMaxShare = 1e9;
inline bool is_share(double share) {
  return share == 0 || (share >= kMinShare && share <= kMaxShare);
}

// What is printed parses back equal. Members that have their default are left out.
std::string print(const Plan& plan);
// Throws Error(kCaller) "<file>: <place>: found ..., expected ..." for anything that is no plan of
// this version.
Plan parse_plan(std::string_view json, std::string_view file);
// Returns the SHA-256 of the printed plan as 64 hex digits.
std::string hash(const Plan& plan);

// Throws Error(kCaller) "<place>: found ..., expected ..." with the first reason why the plan
// cannot be run: another graph or cluster, unknown devices, rows that do not add up, names that
// match nothing, several micro-batches of a graph whose rows meet, or something that this version
// can say but not run. `coupling` is the answer of row_coupling() (sharding/coupling.h).
// The keys of `ops` and what their texts ask of a rule are checked by complete() (program/).
void verify(const Plan& plan,
            const Graph& graph,
            const Cluster& cluster,
            const std::string& coupling = "");
// The part of it that needs no cluster: throws if the plan is for another graph.
void verify_graph_hash(const Plan& plan, const Graph& graph);

}  // namespace medley
