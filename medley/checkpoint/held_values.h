#pragma once

// What a run has to keep, by who has it: the layout of every parameter, buffer and moment over the
// devices of each stage that a program gives it to. Knows no memory: values of local graphs.

#include <string>
#include <string_view>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/program/program.h"

namespace medley {

// A stage that has some of a value. Of one that has nothing of it on any device there is no entry.
struct HoldingStage {
  int stage = 0;
  ValueId value = kNone;  // of its local graph
  Layout layout;          // over the devices of its mesh
};

struct HeldValue {
  std::string kind, name;  // "parameter", "buffer" or "state"
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<HoldingStage> stages;
  bool changes = true;  // false: a buffer that no step assigns, which may lack where no op reads it
  StateRole role{};
};

// Returns them by kind and name. What the graph itself says (constants) is not among them. Those
// who hold the same element hold the same bits; together they may hold less than the whole.
std::vector<HeldValue> held_values(const Program& program);

// Plans without f16 have none; one with it that finds none starts from its first scale.
bool is_loss_scale(std::string_view kind, std::string_view name);

}  // namespace medley
