#pragma once

// Names of calls and communications, and the participants of a communication.

#include <span>
#include <string>
#include <vector>

#include "medley/program/program.h"

namespace medley {

std::string_view name(FunctionKind kind);      // "prologue2_last"
std::string function_name(FunctionKind kind);  // "forward", also for its last variant
std::string to_string(const Call& call);       // "forward 2", "update"
inline bool is_backward(FunctionKind kind) {
  return kind == FunctionKind::kBackward || kind == FunctionKind::kBackwardLast;
}

// Returns the function of a kind. Throws Error(kUs) if the stage lacks it.
const Function& find_function(const LoweredStage& stage, FunctionKind kind);

// Returns the steps of a call. Throws as find_function().
std::span<const Step> steps_of(const LoweredStage& stage, const Call& call);

// The devices of a mesh that communicate along one axis or all: their number and distance, as
// indices into the mesh. Requires: axis < number of axes, or kWholeMesh.
struct AlongAxis {
  int count = 1, stride = 1;
  int place(int device) const { return device / stride % count; }
  int first(int device) const { return device - place(device) * stride; }
};
AlongAxis along(const std::vector<int64_t>& mesh, int axis);

// Returns the devices of the mesh that differ from `device` in `axis` only, in the axis's order, as
// indices into the mesh; all of them for kWholeMesh.
std::vector<int> group_along(const std::vector<int64_t>& mesh, int axis, int device);

}  // namespace medley
