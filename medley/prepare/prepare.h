#pragma once

// Rewrites a graph before sharding. Sums over the step without parameters (normalisers of losses,
// and kStepSum) move to prologues, gradients and the loss are accumulated over micro-batches, and
// the optimizer's update is appended. Knows nothing of devices or plans.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/prepare/optimizer.h"

namespace medley {

// A stage's updates of parameters that owners divide over several pipelines (plan/owners.h).
struct UpdatedParameters {
  std::set<std::string> shares{};     // updates of a share: ops and states are of it
  std::set<std::string> elsewhere{};  // no update: new values come from other stages
  auto operator<=>(const UpdatedParameters&) const = default;
};

// The part of an op in a step. kModel: in the given graph, or its accumulation. Others are added.
struct OpRole {
  enum class Kind : uint8_t { kModel, kNormaliser, kNorm, kNormSum, kUpdate, kAverage };
  Kind kind = Kind::kModel;
  // kNormaliser: the index of its sum in Prepared::normalisers. kUpdate, kAverage and the kNorm
  // that squares a gradient: the parameter's place among the inputs. Else kNone.
  int32_t of = kNone;
  bool recomputed = false;  // repeats a forward op, under its name (recompute.h)
  bool is_norm() const { return kind == Kind::kNorm || kind == Kind::kNormSum; }
};

struct Prepared {
  Graph graph;
  // [op] stable name in the given graph. Added ops: "update/<parameter>", "accumulate/<output>",
  // "copy/<buffer>" of a parameter or batch that a buffer takes, and "prologue/<name>" of an op
  // that a later phase repeats.
  std::vector<std::string> names;
  std::vector<OpRole> roles;  // [op]
  ValueId gradient_norm = kNone;
  std::vector<std::string> normalisers;  // names of the values that are summed over the step
  std::vector<size_t> blocks;  // recomputed: the positions of forward ops at which others begin
  UpdatedParameters updated;
  bool scales_loss = false;  // then the norm decides for all at once whether the step counts
};

// Returns a graph with the inputs scalars_of() each rule that updates parameters and the
// optimizer's state (kState, such as "exp_avg:<parameter>"), and the outputs kParameter and kState.
// Gradient and loss outputs are accumulated values.
Prepared prepare(const Graph& graph, const Optimizer& optimizer);

// Returns the parameter whose gradient an op squares, or which it updates or averages, or null.
const std::string* parameter_of(const Prepared& prepared, OpId op);
// Likewise, if the op is of a share.
const std::string* find_share(const Prepared& prepared, OpId op);

// Returns whether a value is a gradient whose parts are all in other stages.
bool is_received_gradient(const Graph& graph, ValueId value);

// The place of a stage's graph in the whole.
struct StageContext {
  std::vector<std::string> names;  // [op] stable names in the whole graph
  // Stored parameters without a gradient part in this stage: other stages have them.
  std::set<std::string> received{};
  // Parameters whose gradient counts for the norm in another stage.
  std::set<std::string> counted_elsewhere{};
  UpdatedParameters updated{};
  std::string recompute = "none";               // as in a plan
  int in_flight = 1;                            // micro-batches
  std::optional<std::vector<size_t>> blocks{};  // as another size of the stage has them
};
// Prepares the graph of one stage. The norm is that of the gradients that count here. If other
// stages store a parameter too, its gradient is this stage's part, or an input kReceived if it has
// no part. Gradient syncs sum them (lower/gradient_syncs.h).
Prepared prepare(const Graph& graph, const Optimizer& optimizer, const StageContext& context);

}  // namespace medley
