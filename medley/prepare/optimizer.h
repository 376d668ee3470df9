#pragma once

// What updates the parameters: rules, each of some of them. Knows no learning rates: they come with
// every step.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/at.h"
#include "medley/graph/graph.h"
#include "medley/ops/update_ops.h"

namespace medley {

// Of an op that has one (ops/update_ops.h).
struct UpdateProgramText {
  std::string text;
  std::vector<TensorType> states{};
  double flops = 0;
  bool operator==(const UpdateProgramText&) const = default;
};
// Throws Error(kCaller) for what is no graph.
UpdateProgramText program_of(std::string text);

// One of update_ops() by the name between "medley." and ".default", and its numbers.
struct UpdateRule {
  std::string kind = "adamw";
  std::vector<double> numbers{0.9, 0.999, 1e-8, 0.01};
  // Of an op that has programs: by shape of the parameter, "[4, 16]", or one of all shapes, "".
  std::map<std::string, UpdateProgramText> programs{};
  std::vector<std::string> states{};  // what they are called then
  int scalars = kStepScalars;         // how many come with a step: 3, or 5 and numbers
  bool operator==(const UpdateRule&) const = default;
};

// Of devices that compute in f16 (ops/update_ops.h).
struct LossScale {
  double first = 65536;       // a power of two
  int64_t good_steps = 2000;  // after which it doubles
  bool operator==(const LossScale&) const = default;
};

struct Optimizer {
  std::vector<UpdateRule> rules{UpdateRule{}};  // none: gradients only
  std::map<std::string, int> rule_of{};         // by parameter; of others it is the first
  double max_norm = 0;                          // of the gradient; 0: no clipping
  bool gradient_norm = true;                    // computed even without clipping
  // Each parameter has an average that keeps this share of itself every step; 0: none is kept.
  double average = 0;
  LossScale loss_scale{};    // if losses are scaled
  bool scales_loss = false;  // as a plan needs it: analyse() of lower/lower.h

  bool updates() const { return !rules.empty(); }
  // The rule of a parameter: its number, and itself.
  int rule_number(const std::string& parameter) const {
    const auto found = rule_of.find(parameter);
    return found == rule_of.end() ? 0 : found->second;
  }
  const UpdateRule& rule_for(const std::string& parameter) const {
    return rules.at(at(rule_number(parameter)));
  }
};

// Throws Error(kCaller) if there is none, or it takes other numbers.
const UpdateOp& update_op_of(const UpdateRule& rule);
// Requires: the rule has one for this shape.
const UpdateProgramText& program_for(const UpdateRule& rule, const std::vector<Size>& shape);

// The input (kScalar, f64[scalars of the rule]) that a rule's updates read (ops/update_ops.h).
std::string scalars_of(int rule);
// Requires: the name is one of scalars_of().
int rule_of_scalars(std::string_view name);

}  // namespace medley
