#pragma once

// A lowered plan: what every device executes. Executed alike by the runtime and the simulator.
// Local graphs have symbols for the lengths of shards; a device is a table of their values, another
// micro-batch another table. Knows nothing of strategies: data, tensor and expert parallelism look
// the same here.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "medley/base/communication_kind.h"
#include "medley/boxes/relay.h"
#include "medley/graph/graph.h"
#include "medley/program/symbols.h"
#include "medley/sharding/state.h"

namespace medley {

enum class Reduce : uint8_t { kSum, kMax };
inline constexpr int kWholeMesh = -1;  // an axis that stands for all of them

// base/communication_kind.h says what each kind makes of its inputs.
struct Communication {
  CommunicationKind kind = CommunicationKind::kAllReduce;
  Reduce reduce = Reduce::kSum;
  int axis = 0;  // the group is the devices of the mesh that differ in this axis only; or
                 // kWholeMesh
  std::vector<ValueId> inputs, outputs;
  std::vector<Size> send, receive;  // elements per device of the group, where its kind has pieces
  std::string name;                 // for traces and errors: "all_gather transformer.wte.weight"

  // Of communications between stages. The group, as devices of the cluster; of a transfer, those
  // that send come first.
  std::vector<int> devices{};
  // Of transfers. Those of one lane (from one stage to another in one phase) are sent and received
  // in the order of micro-batches, and within one of their numbers. At most `depth` are under way:
  // who sends waits for the oldest before the next; who receives has that many posted ahead, from
  // the start of the step on. So a transfer is posted by its sender only and awaited by its
  // receiver only.
  int lane = -1;
  int depth = 1;
  // Of relays, whose members are `devices`: all stages have the same. Inputs are those tensors of
  // which this stage gives some, outputs those of which it takes some, in their order.
  std::shared_ptr<const Relay> relay{};
};

// Whether a device takes part in a communication as one that only receives.
inline bool only_receives(const Communication& communication) {
  return communication.kind == CommunicationKind::kTransfer && communication.inputs.empty();
}
inline bool only_sends(const Communication& communication) {
  return communication.kind == CommunicationKind::kTransfer && communication.outputs.empty();
}

// Whether it is one of all devices of several stages.
inline bool is_sum_over_stages(const Communication& communication) {
  return !communication.devices.empty() && communication.kind != CommunicationKind::kTransfer;
}

// One of the values of a communication: all are of one dtype.
inline ValueId any_value(const Communication& communication) {
  return communication.inputs.empty() ? communication.outputs.back() : communication.inputs.back();
}

// Where a value lives. kRun: parameters, buffers, optimizer state, scalars. kStep: accumulated
// gradients, loss. kMicrobatch: everything else.
enum class Lifetime : uint8_t { kRun, kStep, kMicrobatch };

// Ops between communications, with the values that die after each.
struct Segment {
  std::vector<OpId> ops;  // into Stage::graph.ops
  std::vector<std::vector<ValueId>>
      dies;  // [op]: values whose last use in this call order is that op
  bool operator==(const Segment&) const = default;
};
struct Post {
  int communication;          // into LoweredStage::communications
  std::vector<ValueId> dies;  // once it has completed
  bool operator==(const Post&) const = default;
};
struct Wait {
  int communication;
  bool operator==(const Wait&) const = default;
};
using Step = std::variant<Segment, Post, Wait>;

// A value that takes the place of a kRun value when the call ends: an updated parameter, buffer or
// moment. Nothing reads the old one after that in the step.
struct Assign {
  ValueId from, to;
  bool operator==(const Assign&) const = default;
};

// The last micro-batch's prologues and backward also send: sums over the step, and the gradients as
// they are ready. All micro-batches run one prologue before any runs the next.
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

// A function of a micro-batch, or some of its steps: then those of other micro-batches come between
// them (call_parts.h).
struct Call {
  FunctionKind function;
  int microbatch;       // 0 for the update
  int first = 0;        // of the steps of the function
  int end = kToTheEnd;  // behind the last of them
  static constexpr int kToTheEnd = -1;
  bool begins() const { return first == 0; }  // the function
  bool ends() const { return end == kToTheEnd; }
  bool operator==(const Call&) const = default;
};

// What a value of the local graph is, for loading and reading back whole tensors.
struct Placement {
  Input input;  // kind, name, local value
  State state;
  std::vector<std::vector<Size>> factors;  // whole sizes, [dim][factor]
  // Of the factors that are cut, by the state or by owners over pipelines: which, counted over all,
  // and start and length on this device. Of what owners divide all devices of a stage together have
  // a share, which may be empty; a stage that owns nothing has no placement.
  struct Cut {
    int position;
    Size offset, length;
  };
  std::vector<Cut> cuts;
};

// The op "medley.accumulate"(%g) -> %sum adds into the slot of its result: the first call of a step
// moves, later ones add.
struct LoweredStage {
  std::vector<int> devices;   // of the cluster, row-major over the mesh
  std::vector<int64_t> mesh;  // sizes of the axes
  Graph graph;                // local: all functions' ops; its inputs are the kRun and batch values
  std::vector<Lifetime> lifetimes;  // [value]
  std::vector<Communication> communications;
  std::vector<Function> functions;  // at most one of each kind
  // The order of one step. Communications of one number are awaited in the order of their posts.
  std::vector<Call> calls;
  std::vector<Placement> inputs;  // parallel to graph.inputs
  std::vector<Placement>
      gradients;         // kStep values with the synchronised gradient; `input` names the parameter
  ValueId loss = kNone;  // kStep, replicated, complete after the update
  std::map<std::string, ValueId> metrics;  // as the loss, of a program that evaluates
  ValueId gradient_norm = kNone;           // kStep, replicated; kNone without clipping or reporting
  // The communication whose end says that every device has all its gradients (commit.h); kNone: of
  // this stage no device waits for others then, or the program was not lowered like that.
  int commit = kNone;
  // tables[microbatch][device of the mesh] -> value of every symbol of `graph`. The update uses
  // table 0.
  std::vector<std::vector<std::vector<int64_t>>> tables;
  SymbolTable symbols;                   // gives the tables, for these lengths and others
  std::vector<Microbatch> microbatches;  // with the lengths of the stage's own devices
  int pipeline = 0;  // of the plan; those of one follow each other, first stage first
  // [device of the mesh] what it computes where the graph says bf16. Empty: bf16. Where they are
  // not all bf16, nothing that crosses between devices is (wire_type()).
  std::vector<DType> bf16_as{};
  // [device of the mesh] bytes that kernels there keep for themselves. Empty: none.
  std::vector<int64_t> workspaces{};
};

// What the device of this number in the mesh computes in the place of bf16.
inline DType bf16_as(const LoweredStage& stage, size_t device) {
  return stage.bf16_as.empty() ? DType::kBF16 : stage.bf16_as[device];
}

// Inputs are stored as the graph says.
inline bool is_input(const LoweredStage& stage, ValueId value) {
  for (const Input& input : stage.graph.inputs)
    if (input.value == value) return true;
  return false;
}

// In which type devices exchange what the graph says is bf16: that in which all of them compute it,
// else f32, which holds every number of the others.
inline DType wire_type(const std::vector<DType>& bf16_as) {
  for (DType each : bf16_as)
    if (each != bf16_as[0]) return DType::kF32;
  return bf16_as.empty() ? DType::kBF16 : bf16_as[0];
}

struct Program {
  std::string graph_hash, plan_hash;
  int64_t global_batch = 0;
  // Then a micro-batch counts its rows from 0, and sees buffers as the one before has left them:
  // forward calls assign them. Else rows are those of the global batch, and the update assigns.
  bool microbatches_are_batches = false;
  std::vector<LoweredStage> stages;
};

// Of a step what is read behind it: its loss, metrics and norm, those that there are.
std::vector<ValueId> reported(const LoweredStage& stage);

void verify(const Program& program);
std::string print(const Program& program);
std::string hash(const Program& program);

}  // namespace medley
