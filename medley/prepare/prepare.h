#pragma once

// What happens to a graph before anything is sharded: sums over the step that need no parameters
// (weights of losses, and kStepSum) move to prologues, gradients and the loss are accumulated over
// micro-batches, and the optimizer's update is appended. Knows nothing of devices or plans.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/prepare/optimizer.h"

namespace medley {

// Of several pipelines, what a stage updates of the parameters that owners divide (plan/owners.h).
struct UpdatedParameters {
  std::set<std::string> shares{};     // the update is that of a share: ops and states are of it
  std::set<std::string> elsewhere{};  // no update: new values come from other stages
  auto operator<=>(const UpdatedParameters&) const = default;
};

// The part of an op in a step. kModel: of the graph given, or its accumulation. Others are added.
struct OpRole {
  enum class Kind : uint8_t { kModel, kWeight, kNorm, kNormSum, kUpdate, kAverage };
  Kind kind = Kind::kModel;
  // kWeight: which of Prepared::weights it sums. kUpdate, kAverage and the kNorm that squares a
  // gradient: the parameter's place among the inputs. Else kNone.
  int32_t of = kNone;
  bool recomputed = false;  // does again, under its name, what a forward op did (recompute.h)
  bool is_norm() const { return kind == Kind::kNorm || kind == Kind::kNormSum; }
};

struct Prepared {
  Graph graph;
  std::vector<std::string> names;  // [op] stable name in the graph given; "update/<parameter>" and
                                   // "accumulate/<output>" for what is added, "copy/<buffer>" for
                                   // the copy of a parameter or of the batch that it takes;
                                   // "prologue/<name>" of an op that a later phase does again
  std::vector<OpRole> roles;       // [op]
  ValueId gradient_norm = kNone;
  std::vector<std::string> weights;  // names of the values that are summed over the step
  std::vector<size_t> blocks;  // recomputed: the positions of forward ops at which others begin
  UpdatedParameters updated;
  bool scales_loss = false;  // then the norm says to all at once whether the step counts
};

// The result has the inputs scalars_of() each rule that updates something, and the optimizer's
// state (kState, such as "exp_avg:<parameter>"), and the outputs kParameter and kState. Gradient
// and loss outputs are accumulated values.
Prepared prepare(const Graph& graph, const Optimizer& optimizer);

// Returns the parameter that an op squares the gradient of, updates or averages, or null.
const std::string* parameter_of(const Prepared& prepared, OpId op);
// The same if the op is of a share.
const std::string* find_share(const Prepared& prepared, OpId op);

// Whether a value is a gradient that other stages have all parts of.
bool is_received_gradient(const Graph& graph, ValueId value);

// Of the graph of one stage: what it is in the whole.
struct StageContext {
  std::vector<std::string> names;  // [op] stable names in the whole graph
  // Parameters that it holds, but has no part of their gradient: other stages have.
  std::set<std::string> received{};
  // Those whose gradient counts for the norm in another stage.
  std::set<std::string> counted_elsewhere{};
  UpdatedParameters updated{};
  std::string recompute = "none";               // as in a plan
  int in_flight = 1;                            // micro-batches
  std::optional<std::vector<size_t>> blocks{};  // as another size of the stage has them
};
// The same for the graph of one stage. The norm is that of the gradients that count here. The
// gradient of a parameter that other stages hold, too, is this stage's part, or an input
// kReceived where it has none: relays sum them (lower/relays.h).
Prepared prepare(const Graph& graph, const Optimizer& optimizer, const StageContext& context);

}  // namespace medley
