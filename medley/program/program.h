#pragma once

// A lowered plan: the program of every device, for the runtime and the simulator. Local graphs have
// symbols for the lengths of shards. Each device and micro-batch is a table of their values. Knows
// nothing of strategies: data, tensor and expert parallelism look the same here.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "medley/base/communication_kind.h"
#include "medley/boxes/gradient_sync.h"
#include "medley/graph/graph.h"
#include "medley/program/symbols.h"
#include "medley/sharding/placement.h"

namespace medley {

enum class Reduce : uint8_t { kSum, kMax };
inline constexpr int kWholeMesh = -1;  // stands for all axes

// base/communication_kind.h describes the kinds.
struct Communication {
  CommunicationKind kind = CommunicationKind::kAllReduce;
  Reduce reduce = Reduce::kSum;
  int axis = 0;  // the group is the devices that differ in this axis only, or kWholeMesh
  std::vector<ValueId> inputs, outputs;
  std::vector<Size> send, receive;  // elements per device of the group, if its kind has pieces
  std::string name;                 // for traces and errors: "all_gather transformer.wte.weight"

  // Between stages: the group, as devices of the cluster. The senders of a transfer come first.
  std::vector<int> devices{};
  // Transfers of one lane (two stages, one phase) are sent and received by micro-batch, then by
  // number. At most `depth` are in flight: the sender waits for the oldest before the next, and the
  // receiver posts that many ahead, from the start of the step. Only the sender posts a transfer,
  // and only the receiver waits for it.
  int lane = -1;
  int depth = 1;
  // Gradient syncs only: one for all stages, with the members `devices`. Inputs are the tensors of
  // which this stage gives elements, outputs those of which it takes elements, in order.
  std::shared_ptr<const GradientSync> sync{};
};

// Returns whether a device only receives in a communication.
inline bool only_receives(const Communication& communication) {
  return communication.kind == CommunicationKind::kTransfer && communication.inputs.empty();
}
inline bool only_sends(const Communication& communication) {
  return communication.kind == CommunicationKind::kTransfer && communication.outputs.empty();
}

// Returns whether its group spans several stages.
inline bool is_sum_over_stages(const Communication& communication) {
  return !communication.devices.empty() && communication.kind != CommunicationKind::kTransfer;
}

// Returns one of its values: all are of one dtype.
inline ValueId any_value(const Communication& communication) {
  return communication.inputs.empty() ? communication.outputs.back() : communication.inputs.back();
}

// The lifetime of a value. kRun: parameters, buffers, optimizer state, scalars. kStep: accumulated
// gradients, loss. kMicrobatch: all others.
enum class Lifetime : uint8_t { kRun, kStep, kMicrobatch };

// Ops between communications, with the values that die after each.
struct Segment {
  std::vector<OpId> ops;                   // into Stage::graph.ops
  std::vector<std::vector<ValueId>> dies;  // [op]: values with their last use there
  bool operator==(const Segment&) const = default;
};
struct Post {
  int communication;          // into LoweredStage::communications
  std::vector<ValueId> dies;  // after completion
  bool operator==(const Post&) const = default;
};
struct Wait {
  int communication;
  bool operator==(const Wait&) const = default;
};
using Step = std::variant<Segment, Post, Wait>;

// A value that replaces a kRun value when the call ends: an updated parameter, buffer or moment.
// The old one has no later readers in the step.
struct Assign {
  ValueId from, to;
  bool operator==(const Assign&) const = default;
};

// The last micro-batch's prologues and backward also send: sums over the step, and finished
// gradients. All micro-batches run one prologue before any runs the next.
enum class FunctionKind : uint8_t {
  kPrologue,
  kPrologueLast,
  kPrologue2,
  kPrologue2Last,
  kPrologue3,
  kPrologue3Last,
  kForward,
  kBackward,
  kBackwardLast,
  kUpdate
};
inline constexpr FunctionKind prologue_kind(int number, bool last) {
  return static_cast<FunctionKind>(2 * number + (last ? 1 : 0));
}
struct Function {
  FunctionKind kind;
  std::vector<Step> steps;
  std::vector<Assign> assigns;
  bool operator==(const Function&) const = default;
};

// A function of a micro-batch, or some of its steps, interleaved with those of other micro-batches
// (call_parts.h).
struct Call {
  FunctionKind function;
  int microbatch;       // 0 for the update
  int first = 0;        // step of the function
  int end = kToTheEnd;  // after its last step
  static constexpr int kToTheEnd = -1;
  bool begins() const { return first == 0; }  // a function
  bool ends() const { return end == kToTheEnd; }
  bool operator==(const Call&) const = default;
};

// The whole tensor of a local value, for loading and reading back.
struct PlacedValue {
  Input input;  // kind, name, local value
  Placement placement;
  std::vector<std::vector<Size>> factors;  // whole sizes, [dim][factor]
  // The factors cut by the placement or by owners over pipelines: the index over all dims, and the
  // start and length on this device. If owners divide the value, a stage's devices together have a
  // share, possibly empty. A stage that owns none has no placement.
  struct Cut {
    int position;
    Size offset, length;
  };
  std::vector<Cut> cuts;
};

// The op "medley.accumulate"(%g) -> %sum adds into the slot of its result: the first call of a step
// moves, later ones add.
struct LoweredStage {
  std::vector<int> devices;   // in the cluster, row-major over the mesh
  std::vector<int64_t> mesh;  // sizes of the axes
  Graph graph;                // local: all functions' ops; its inputs are the kRun and batch values
  std::vector<Lifetime> lifetimes;  // [value]
  std::vector<Communication> communications;
  std::vector<Function> functions;  // at most one of each kind
  // The order of one step. Communications of one number are awaited in posting order.
  std::vector<Call> calls;
  std::vector<PlacedValue> inputs;  // parallel to graph.inputs
  std::vector<PlacedValue>
      gradients;         // kStep values with the summed gradient; `input` names the parameter
  ValueId loss = kNone;  // kStep, replicated, complete after the update
  std::map<std::string, ValueId> metrics;  // like the loss, for a program that evaluates
  ValueId gradient_norm = kNone;           // kStep, replicated; kNone without clipping or reporting
  // The communication after which every device has all its gradients (commit.h). kNone: no device
  // of this stage waits for others, or it was lowered without a commit.
  int commit = kNone;
  // tables[microbatch][device of the mesh] -> value of every symbol of `graph`. The update uses
  // table 0.
  std::vector<std::vector<std::vector<int64_t>>> tables;
  SymbolTable symbols;                   // computes the tables for any lengths
  std::vector<Microbatch> microbatches;  // with the lengths of the stage's devices
  int pipeline = 0;                      // in the plan; its stages are consecutive
  // [device of the mesh] its compute type for the graph's bf16. Empty: bf16. Unless all are bf16,
  // devices exchange another type (wire_type()).
  std::vector<DType> bf16_as{};
  // [device of the mesh] workspace bytes of its kernels. Empty: none.
  std::vector<int64_t> workspaces{};
};

// Returns the compute type for bf16 of this device in the mesh.
inline DType bf16_as(const LoweredStage& stage, size_t device) {
  return stage.bf16_as.empty() ? DType::kBF16 : stage.bf16_as[device];
}

// Inputs are stored in the graph's type.
inline bool is_input(const LoweredStage& stage, ValueId value) {
  for (const Input& input : stage.graph.inputs)
    if (input.value == value) return true;
  return false;
}

// Returns the exchange type for the graph's bf16: the compute type if all devices have the same,
// else f32, which represents every value of the others.
inline DType wire_type(const std::vector<DType>& bf16_as) {
  for (DType each : bf16_as)
    if (each != bf16_as[0]) return DType::kF32;
  return bf16_as.empty() ? DType::kBF16 : bf16_as[0];
}

struct Program {
  std::string graph_hash, plan_hash;
  int64_t global_batch = 0;
  // Then a micro-batch counts its rows from 0, and reads buffers after the previous one: forward
  // calls assign them. Else rows are those of the global batch, and the update assigns.
  bool microbatches_are_batches = false;
  std::vector<LoweredStage> stages;
};

// Returns a step's loss, metrics and norm, as far as they exist.
std::vector<ValueId> reported(const LoweredStage& stage);

void verify(const Program& program);
std::string print(const Program& program);
std::string hash(const Program& program);

}  // namespace medley
