#pragma once

// A training graph: forward, loss, backward and (after planning) update, as functional ops in
// topological order. Describes the whole model, with the batch as only symbol, or the local graph
// of a device, with lengths of shards as symbols. Plain values: knows nothing of rules, devices,
// plans or PyTorch.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "medley/base/at.h"
#include "medley/graph/dtype.h"
#include "medley/graph/size.h"

namespace medley {

using ValueId = int32_t;  // index into Graph::values
using OpId = int32_t;     // index into Graph::ops
inline constexpr int32_t kNone = -1;

struct TensorType {
  DType dtype = DType::kF32;
  std::vector<Size> shape;
  bool operator==(const TensorType&) const = default;
};

// Prologues compute sums over the rows of a step without parameters; the second and third sum terms
// that read earlier sums. The update is the optimizer. Planning appends all four.
enum class Phase : uint8_t { kPrologue, kPrologue2, kPrologue3, kForward, kBackward, kUpdate };
inline constexpr int kPrologues = 3;
inline bool is_prologue(Phase phase) { return phase < Phase::kForward; }

// Sums x over the micro-batches of a step, so its readers see the whole batch.
inline constexpr std::string_view kStepSum = "medley.step_sum.default";
// Returns a micro-batch's contribution to a sum over the step: x times its share of the rows.
inline constexpr std::string_view kStepShare = "medley.step_share.default";

enum class InputKind : uint8_t {
  kParameter,  // trained
  kBuffer,     // persistent, not trained; may be updated by an output
  kBatch,      // a tensor of the batch; its leading size is the batch symbol unless it has none
  kScalar,  // global, equal on all devices: "rng" (i64[2]: seed, step), learning rate, loss weights
  kState,   // optimizer state: "exp_avg:wte.weight"
  kReceived,  // in a stage's graph: from another stage, per micro-batch
};

struct Value {
  TensorType type;
  OpId producer = kNone;  // kNone for inputs
  int32_t result = 0;     // which result of the producer
  bool operator==(const Value&) const = default;
};

// Relation of an optimizer's state to its parameter. kMoment: any state of an update rule.
struct StateRole {
  enum class Kind : uint8_t { kMoment, kMaster, kAverage, kLossScale };
  Kind kind = Kind::kMoment;
  std::string of;  // the parameter; "" for the loss scale
  bool operator==(const StateRole&) const = default;
};

struct Input {
  InputKind kind;
  std::string name;  // unique within its kind: parameter path, batch key, ...
  ValueId value;
  StateRole role{};  // role of a kState
  bool operator==(const Input&) const = default;
};

struct NoneArgument {
  bool operator==(const NoneArgument&) const = default;
};
// A tensor operand; kNone: an absent one inside a list of optional tensors.
struct ValueArgument {
  ValueId value = kNone;
  bool operator==(const ValueArgument&) const = default;
};
// One argument of an op. Integers are Sizes, so sizes that depend on the batch need no special
// case.
using Argument = std::variant<NoneArgument,
                              ValueArgument,
                              std::vector<ValueArgument>,
                              bool,
                              Size,
                              double,
                              std::vector<Size>,
                              std::vector<bool>,
                              std::vector<double>,
                              DType,
                              std::string>;

struct Op {
  std::string name;  // "aten.mm.default" (namespace.op.overload), "medley.attention.default"
  std::vector<Argument> arguments;  // all of the schema's, in its order, with defaults
  std::vector<ValueId> results;     // kNone for a result that is None
  Phase phase = Phase::kForward;
  std::string module;  // path of the innermost nn.Module, "" for the root: "transformer.h.0.attn"
  std::string source;  // "file.py:12" for error messages; no part of the hash
  bool operator==(const Op&) const = default;
};

// A metric is reported like the loss. It is a sum or mean over rows, or a tensor with the rows in
// one dim, reported for the whole batch by every device. Values `sent` go from a stage's graph to
// other stages, which receive them under the same name.
enum class OutputKind : uint8_t { kLoss, kMetric, kGradient, kBuffer, kParameter, kState, kSent };

struct Output {
  OutputKind kind;
  // Name of the input whose gradient or new value this is, or its own; "" for the loss.
  std::string name;
  ValueId value;
  bool operator==(const Output&) const = default;
};

// A metric "carried:<batch input>" replaces the rows of that input in the next step.
inline constexpr std::string_view kCarried = "carried:";
inline bool is_carried(std::string_view metric) { return metric.starts_with(kCarried); }

// Prefixes of state names: a copy of the parameter in full precision, and its average.
inline constexpr std::string_view kMasterState = "master:", kAverageState = "average:";
inline constexpr std::string_view kLossScaleState = "loss_scale";  // ops/update_ops.h

struct Graph {
  std::string name;
  std::vector<std::string> symbols;  // in sizes; symbol 0 of a captured graph is "b", the batch
  std::vector<Value> values;
  std::vector<Input> inputs;
  std::vector<Op> ops;  // topological order: forward in program order, then backward
  std::vector<Output> outputs;
  bool operator==(const Graph&) const = default;
};

// Append an input, or an op with fresh results of the given types, and return the id(s). If the op
// comes with results, kNone stays and each other entry gets a fresh id.
ValueId add_input(Graph& graph, InputKind kind, std::string name, TensorType type);
std::vector<ValueId> add_op(Graph& graph, Op op, const std::vector<TensorType>& types);

// Returns every tensor operand of an op in argument order, lists flattened, absent ones as kNone.
std::vector<ValueId> operands(const Op& op);
// Calls `change(ValueId&)` for every tensor operand that is present.
template <typename Change>
void for_each_operand(Op& op, Change change);

// Returns the names that plans use: "<module>/<op name without namespace and overload>#<k>". k
// counts ops of equal name within module and phase, in order. "~" precedes the op name of a
// backward op: "h.0.mlp/~mm#1".
std::vector<std::string> stable_names(const Graph& graph);

// Returns the op's name without namespace and overload: "mm" of "aten.mm.default".
std::string_view short_name(const Op& op);
// Returns whether an op is a mean over the rows of a step, whose operand 1 is the normaliser, or
// its backward op.
inline bool is_mean_loss(const Op& op) { return op.name.starts_with("medley.mean_loss"); }
// Returns whether a type has the rows of the batch in a dim.
bool has_rows(const TensorType& type);
// Returns the batch inputs that a metric of the graph sets for the next step.
std::set<std::string> carried_inputs(const Graph& graph);
// Returns the role that a state's name gives: {kMaster, "wte.weight"} of "master:wte.weight".
StateRole role_of_state(std::string_view name);
std::string to_string(Phase phase);      // "forward"
std::string to_string(InputKind kind);   // "parameter"
std::string to_string(OutputKind kind);  // "gradient"
// Requires: the value is present.
inline const TensorType& type_of(const Graph& graph, ValueId value) {
  return graph.values.at(at(value)).type;
}

int64_t num_bytes(const TensorType& type, const std::vector<int64_t>& symbol_values);

template <typename Change>
void for_each_operand(Op& op, Change change) {
  for (Argument& argument : op.arguments) {
    if (auto* one = std::get_if<ValueArgument>(&argument)) {
      if (one->value != kNone) change(one->value);
    } else if (auto* list = std::get_if<std::vector<ValueArgument>>(&argument)) {
      for (ValueArgument& each : *list)
        if (each.value != kNone) change(each.value);
    }
  }
}

}  // namespace medley
