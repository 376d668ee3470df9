#include "medley/program/calls.h"

#include <fmt/format.h>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

std::string_view name(FunctionKind kind) {
  constexpr std::string_view kNames[] = {"prologue",
                                         "prologue_last",
                                         "prologue2",
                                         "prologue2_last",
                                         "prologue3",
                                         "prologue3_last",
                                         "forward",
                                         "backward",
                                         "backward_last",
                                         "update"};
  return kNames[static_cast<size_t>(kind)];
}

std::string function_name(FunctionKind kind) {
  return std::string(name(kind).substr(0, name(kind).find_first_of("23_")));
}

std::vector<ValueId> reported(const LoweredStage& stage) {
  std::vector<ValueId> values;
  for (ValueId value : {stage.loss, stage.gradient_norm})
    if (value != kNone) values.push_back(value);
  for (const auto& [name, value] : stage.metrics) values.push_back(value);
  return values;
}

std::string to_string(const Call& call) {
  if (call.function == FunctionKind::kUpdate) return "update";
  return fmt::format("{} {}", function_name(call.function), call.microbatch);
}

const Function& find_function(const LoweredStage& stage, FunctionKind kind) {
  for (const Function& function : stage.functions)
    if (function.kind == kind) return function;
  throw Error(
      Blame::kUs,
      fmt::format("a call of function kind {}, which the stage lacks", static_cast<int>(kind)));
}

std::span<const Step> steps_of(const LoweredStage& stage, const Call& call) {
  const std::span<const Step> all(find_function(stage, call.function).steps);
  return call.ends() ? all.subspan(at(call.first))
                     : all.subspan(at(call.first), at(call.end - call.first));
}

AlongAxis along(const std::vector<int64_t>& mesh, int axis) {
  MEDLEY_CHECK(axis == kWholeMesh || (axis >= 0 && at(axis) < mesh.size()));
  AlongAxis result;
  for (size_t i = mesh.size(); i-- > 0;) {
    const auto size = static_cast<int>(mesh[i]);
    if (axis == kWholeMesh || static_cast<int>(i) == axis)
      result.count *= size;
    else if (static_cast<int>(i) > axis)
      result.stride *= size;
  }
  return result;
}

std::vector<int> group_along(const std::vector<int64_t>& mesh, int axis, int device) {
  const AlongAxis on = along(mesh, axis);
  std::vector<int> group;
  for (int i = 0; i < on.count; ++i) group.push_back(on.first(device) + i * on.stride);
  return group;
}

}  // namespace medley
