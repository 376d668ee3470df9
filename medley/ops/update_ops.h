#pragma once

// The ops that replace a parameter and what an optimizer keeps of it, one row each:
//
//   name(param, grad, state ..., master?, scalars, number ...) -> (param, state ..., master)
//
// The scalars are f64[3] (local_ops.h). If a hyperparameter depends on the step they are f64[5 +
// n]:
//
//   learning rate, step, clip scale, share that an average keeps (NaN: a constant of its op),
//   largest element of the gradient, number ...  (these replace the numbers of the op)
//
// "pointwise<n>" and "whole<n>" have n states and, behind the scalars, a program: the text of a
// graph with inputs parameter "x", batch "grad", scalar "lr" and "step" (f64[]) and a scalar for
// each number of the step, state "0" and so on, and outputs parameter "x" and the states. That of
// pointwise<n> is of a vector f[b]; that of whole<n> has the shape of the parameter, states of any
// shape, and its flops before it.
//
// Whoever has to know which ops update, or what one keeps, asks here. Knows nothing of how they are
// computed (medley/kernels/update.h).

#include <optional>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// Of a parameter [.., n, m]: as it is, [.., n, 1] or [.., 1, m]. One of less than two dims has no
// kPerColumn, and its kPerRow is as it is.
enum class StateShape : uint8_t { kSame, kPerRow, kPerColumn };

struct UpdateState {
  std::string_view name;  // of the input: "<name>:<parameter>"
  StateShape shape = StateShape::kSame;
  int unless_zero = kNone;  // there is none if this number is 0
  bool codes = false;       // bytes, to be multiplied by the state behind it
};

// What a new value of an element depends on: itself, its row (the last dim), all of the tensor.
enum class UpdateUnit : uint8_t { kElement, kRow, kTensor };

struct UpdateOp {
  std::string_view name;  // "medley.adamw.default"
  std::vector<UpdateState> states;
  int numbers = 0;  // behind the scalars
  int flags = 0;    // of these, the last ones that are true or false
  UpdateUnit unit = UpdateUnit::kElement;
  WorkClass work = WorkClass::kMemory;
  bool has_program = false;
  bool has_whole_program() const { return has_program && unit == UpdateUnit::kTensor; }
  // Behind the scalars.
  size_t more_arguments() const {
    return static_cast<size_t>(numbers) + (has_program ? 1 : 0) + (has_whole_program() ? 1 : 0);
  }
  size_t scalars() const { return states.size() + 3; }  // their place among the arguments
  std::string_view kind() const;                        // "adamw": the schema's name
};

// How many scalars a rule has: constants only, or before the numbers of a step.
inline constexpr int kStepScalars = 3, kManyScalars = 5;

// kLossScaleState, of the loss scale (graph/replace_bf16.h), f64[4]:
//
//   scale / first - 1, good steps since it last changed, steps skipped so far, and the first of
//   these as it was in the last step
//
// A power of two, exact as such from zeros on. A step whose gradients are not all finite changes
// nothing but the scale, which halves.

// Whether the result is a sum over the calls of a step (program/program.h).
inline bool accumulates(const Op& op) { return op.name.starts_with("medley.accumulate"); }

// Sorted by name.
const std::vector<UpdateOp>& update_ops();
// Returns null for an op that updates nothing.
const UpdateOp* find_update_op(std::string_view name);
// The same by kind().
const UpdateOp* find_update_kind(std::string_view kind);
// Returns the type of a state of a parameter, which is of this type, or nothing if it has none of
// that shape. States of 16-bit parameters are f32.
std::optional<TensorType> state_type(const UpdateState& state, const TensorType& parameter);

}  // namespace medley
