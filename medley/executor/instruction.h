#pragma once

// The executor's input: the ops of a segment with everything resolved that does not depend on the
// tensors. Values only, except for programs of updates. instruction_build.h builds them,
// aten_executor.cpp runs them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "medley/executor/update_program.h"
#include "medley/graph/graph.h"
#include "medley/kernels/update.h"

namespace medley {

// The place of a value: the frame of the run or that of the micro-batch.
struct Slot {
  ValueId value = kNone;
  bool run = false;
};

// A tensor operand. `dies`: its slot gives it away, so that the kernel has the only reference.
// `as`: the type in which it is read, if it may be stored in another.
struct Operand {
  Slot slot;
  bool dies = false;
  std::optional<c10::ScalarType> as{};
};
struct TensorArgument {
  size_t argument;
  Operand operand;
};
struct ListArgument {
  size_t argument;
  bool optional;                  // a list of optional tensors
  std::vector<Operand> elements;  // an absent one has no value
};
struct Result {
  Slot slot;  // without a value if dropped
  std::vector<int64_t> shape;
};

// A call of a variant that writes into its operand `argument`, used if that operand is unique when
// the op runs.
struct Overwrite {
  c10::OperatorHandle handle;
  size_t argument;
  bool pass_out;    // an out= variant, else an in-place one
  bool contiguous;  // the operand must be
};

struct KernelCall {
  c10::OperatorHandle handle;
  std::vector<c10::IValue> constants;  // one per argument of the schema, None for tensors
  std::vector<TensorArgument> tensors;
  std::vector<ListArgument> lists;
  std::vector<Result> results;
  bool result_is_list = false;  // one result of type Tensor[]
  bool contiguous = false;      // the kernel requires contiguous operands
  std::optional<Overwrite> overwrite;
};

// Results that need no kernel: they have no elements, or their operands have none.
struct Fill {
  std::vector<Result> results;
  std::vector<c10::ScalarType> types;
  double value = 0;
};

// The result is the operand.
struct Alias {
  Operand operand;
  Slot result;
};

// Adds into the slot of the result (program/program.h).
struct Accumulate {
  Operand gradient;
  Slot sum;
  c10::ScalarType type;
  int64_t count = 1;  // divisor of gradients
};

// The update of several parameters at once. Absent operands and results have no value.
struct JoinedUpdate {
  struct Parameter {
    Operand parameter, gradient;
    std::vector<Operand> kept;   // its states, then the master copy
    std::vector<Slot> replaced;  // the parameter, its states, the master copy
  };
  std::vector<Parameter> parameters;
  Operand scalars;
  Update update = nullptr;
  std::vector<double> numbers;
  std::shared_ptr<UpdateProgram> program;  // replaces `update`
};

struct Instruction {
  std::variant<KernelCall, Fill, Alias, Accumulate, JoinedUpdate> work;
  std::vector<Slot> frees;  // values that die here and were not given away
  size_t op;                // into PreparedOps::ops, for messages
};

}  // namespace medley
