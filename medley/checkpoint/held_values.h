#pragma once

// The state of a run by holder: the layout of every parameter, buffer and moment on the devices of
// each stage of a program. Knows no memory: values of local graphs.

#include <string>
#include <string_view>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/program/program.h"

namespace medley {

// A stage that stores some of a value. Stages without any of it have no entry.
struct HoldingStage {
  int stage = 0;
  ValueId value = kNone;  // in its local graph
  Layout layout;          // over the devices of its mesh
};

struct HeldValue {
  std::string kind, name;  // "parameter", "buffer" or "state"
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<HoldingStage> stages;
  bool changes = true;  // false: a buffer that no step assigns, possibly absent if no op reads it
  StateRole role{};
};

// Returns the values by kind and name, without the graph's constants. Holders of one element have
// equal bits. Together they may have less than the whole.
std::vector<HeldValue> held_values(const Program& program);

// Returns whether it is the loss scale of f16. Plans without f16 have none. A plan with f16 starts
// from its first scale if the state has none.
bool is_loss_scale(std::string_view kind, std::string_view name);

}  // namespace medley
