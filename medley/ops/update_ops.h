#pragma once

// The ops that update a parameter and its optimizer state, one row each:
//
//   name(param, grad, state ..., master?, scalars, number ...) -> (param, state ..., master)
//
// The scalars are f64[3] (local_ops.h), or f64[5 + n] if a hyperparameter depends on the step:
//
//   learning rate, step, clip scale, share that an average keeps (NaN: a constant of its op),
//   largest element of the gradient, number ...  (these replace the numbers of the op)
//
// "pointwise<n>" and "whole<n>" have n states and, behind the scalars, a program: the text of a
// graph. Its inputs are parameter "x", batch "grad", scalars "lr" and "step" (f64[]), a scalar for
// each number of the step, and states from "0". Its outputs are parameter "x" and the states. A
// pointwise<n> program is of a vector f[b]. A whole<n> program has the shape of the parameter,
// states of any shape, and its flops before it.
//
// The one table of updating ops and their state. Knows nothing of how they are computed
// (medley/kernels/update.h).

#include <optional>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// For a parameter [.., n, m]: unchanged, [.., n, 1] or [.., 1, m]. With less than two dims there is
// no kPerColumn, and kPerRow is unchanged.
enum class StateShape : uint8_t { kSame, kPerRow, kPerColumn };

struct UpdateState {
  std::string_view name;  // the input is "<name>:<parameter>"
  StateShape shape = StateShape::kSame;
  int unless_zero = kNone;  // absent if this number is 0
  bool codes = false;       // bytes, multiplied by the state behind it
};

// The dependence of an element's new value: itself, its row (the last dim), all of the tensor.
enum class UpdateUnit : uint8_t { kElement, kRow, kTensor };

struct UpdateOp {
  std::string_view name;  // "medley.adamw.default"
  std::vector<UpdateState> states;
  int numbers = 0;  // behind the scalars
  int flags = 0;    // the last numbers, which are booleans
  UpdateUnit unit = UpdateUnit::kElement;
  WorkClass work = WorkClass::kMemory;
  bool has_program = false;
  bool has_whole_program() const { return has_program && unit == UpdateUnit::kTensor; }
  // Returns the arguments behind the scalars.
  size_t more_arguments() const {
    return static_cast<size_t>(numbers) + (has_program ? 1 : 0) + (has_whole_program() ? 1 : 0);
  }
  size_t scalars() const { return states.size() + 3; }  // their place among the arguments
  std::string_view kind() const;                        // "adamw": the schema's name
};

// The number of a rule's scalars: constants only, or before the numbers of a step.
inline constexpr int kStepScalars = 3, kManyScalars = 5;

// kLossScaleState, of the loss scale (graph/replace_bf16.h), f64[4]:
//
//   scale / first - 1, good steps since its last change, skipped steps, and the first of
//   these as it was in the last step
//
// A power of two, exact from zeros on. A step with gradients that are not all finite only halves
// the scale.

// Returns whether the result is a sum over the calls of a step (program/program.h).
inline bool accumulates(const Op& op) { return op.name.starts_with("medley.accumulate"); }

// Sorted by name.
const std::vector<UpdateOp>& update_ops();
// Returns null for an op that updates no parameter.
const UpdateOp* find_update_op(std::string_view name);
// Finds by kind().
const UpdateOp* find_update_kind(std::string_view kind);
// Returns the type of a state for a parameter of this type, or nothing if it has none of that
// shape. States of 16-bit parameters are f32.
std::optional<TensorType> state_type(const UpdateState& state, const TensorType& parameter);

}  // namespace medley
