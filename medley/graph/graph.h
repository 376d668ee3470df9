#pragma once

// A training graph: forward, loss, backward and (after planning) update, as functional ops in
// topological order. Used for the whole model, whose only symbol is the batch, and for the local
// graph of a device, whose symbols are lengths of shards. Plain values: knows nothing of rules,
// devices, plans or PyTorch.

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

// Prologues give sums over the rows of a step that need no parameters, the second and third those
// of terms that read such sums. The update is the optimizer. Planning appends all four.
enum class Phase : uint8_t { kPrologue, kPrologue2, kPrologue3, kForward, kBackward, kUpdate };
inline constexpr int kPrologues = 3;
inline bool is_prologue(Phase phase) { return phase < Phase::kForward; }

// The sum of x over the micro-batches of a step: what reads it sees the whole batch.
inline constexpr std::string_view kStepSum = "medley.step_sum.default";
// The part of x that a micro-batch contributes to a sum over the step: its share of the rows.
inline constexpr std::string_view kStepShare = "medley.step_share.default";

enum class InputKind : uint8_t {
  kParameter,  // trained
  kBuffer,     // persistent, not trained; may be updated by an output
  kBatch,      // a tensor of the batch; its leading size is the batch symbol unless it has none
  kScalar,  // global, equal on all devices: "rng" (i64[2]: seed, step), learning rate, loss weights
  kState,   // of the optimizer: "exp_avg:wte.weight"
  kReceived,  // of the graph of a stage: made by another stage, anew for every micro-batch
};

struct Value {
  TensorType type;
  OpId producer = kNone;  // kNone for inputs
  int32_t result = 0;     // which result of the producer
  bool operator==(const Value&) const = default;
};

// The relation of an optimizer's state to its parameter. kMoment: any state of an update rule.
struct StateRole {
  enum class Kind : uint8_t { kMoment, kMaster, kAverage, kLossScale };
  Kind kind = Kind::kMoment;
  std::string of;  // the parameter; of the loss scale ""
  bool operator==(const StateRole&) const = default;
};

struct Input {
  InputKind kind;
  std::string name;  // unique within its kind: parameter path, batch key, ...
  ValueId value;
  StateRole role{};  // of a kState
  bool operator==(const Input&) const = default;
};

struct NoneArgument {
  bool operator==(const NoneArgument&) const = default;
};
// A tensor operand, or one that is absent (kNone) inside a list of optional tensors.
struct ValueArgument {
  ValueId value = kNone;
  bool operator==(const ValueArgument&) const = default;
};
// One argument of an op. An integer is a Size, so that sizes which depend on the batch need no
// special case.
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
  std::vector<Argument> arguments;  // all of the schema's, in its order, defaults written out
  std::vector<ValueId> results;     // kNone for a result that is None
  Phase phase = Phase::kForward;
  std::string module;  // path of the innermost nn.Module, "" for the root: "transformer.h.0.attn"
  std::string source;  // "file.py:12" for error messages; no part of the hash
  bool operator==(const Op&) const = default;
};

// metric: a value that is reported as the loss is: a sum or mean over rows, or a tensor with the
// rows of the batch in one dim, of which every device reports those of the whole batch. sent: of
// the graph of a stage, to other stages, whose graphs receive it under the same name.
enum class OutputKind : uint8_t { kLoss, kMetric, kGradient, kBuffer, kParameter, kState, kSent };

struct Output {
  OutputKind kind;
  // Of the input that it is the gradient or the new value of, or its own; "" for the loss.
  std::string name;
  ValueId value;
  bool operator==(const Output&) const = default;
};

// A metric of this name and that of a batch input has the rows of that input in the next step.
inline constexpr std::string_view kCarried = "carried:";
inline bool is_carried(std::string_view metric) { return metric.starts_with(kCarried); }

// How the names of states begin: of a copy of the parameter in full precision, and of its average.
inline constexpr std::string_view kMasterState = "master:", kAverageState = "average:";
inline constexpr std::string_view kLossScaleState = "loss_scale";  // ops/update_ops.h

struct Graph {
  std::string name;
  std::vector<std::string> symbols;  // of the sizes; symbol 0 of a captured graph is "b", the batch
  std::vector<Value> values;
  std::vector<Input> inputs;
  std::vector<Op> ops;  // topological order: forward in program order, then backward
  std::vector<Output> outputs;
  bool operator==(const Graph&) const = default;
};

// Appends an input / an op with fresh results of the given types; returns its id(s). An op that
// comes with results keeps those that are kNone and gets a fresh id for each of the others.
ValueId add_input(Graph& graph, InputKind kind, std::string name, TensorType type);
std::vector<ValueId> add_op(Graph& graph, Op op, const std::vector<TensorType>& types);

// Returns every tensor operand of an op in the order of its arguments, lists flattened, absent ones
// as kNone.
std::vector<ValueId> operands(const Op& op);
// Calls `change(ValueId&)` for every tensor operand that is present.
template <typename Change>
void for_each_operand(Op& op, Change change);

// Returns the name that plans use: "<module>/<op name without namespace and overload>#<k>", k
// counting the ops of equal name within the module and phase, in order; a backward op's op name has
// a "~" before it: "h.0.mlp/~mm#1".
std::vector<std::string> stable_names(const Graph& graph);

// Returns the op's name without namespace and overload: "mm" of "aten.mm.default".
std::string_view short_name(const Op& op);
// Whether an op is a mean over the rows of a step, whose operand 1 is the weight, or its backward
// op.
inline bool is_mean_loss(const Op& op) { return op.name.starts_with("medley.mean_loss"); }
// Whether a type has the rows of the batch in a dim.
bool has_rows(const TensorType& type);
// The names of batch inputs that a metric of the graph gives for the next step.
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
