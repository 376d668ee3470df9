#pragma once

// The rules that update the parameters, each for some of them. Knows no learning rates, which
// arrive with every step.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/at.h"
#include "medley/graph/graph.h"
#include "medley/ops/update_ops.h"

namespace medley {

// The program of an op (ops/update_ops.h).
struct UpdateProgramText {
  std::string text;
  std::vector<TensorType> states{};
  double flops = 0;
  bool operator==(const UpdateProgramText&) const = default;
};
// Throws Error(kCaller) if the text is no graph.
UpdateProgramText program_of(std::string text);

// One of update_ops() by the name between "medley." and ".default", and its numbers.
struct UpdateRule {
  std::string kind = "adamw";
  std::vector<double> numbers{0.9, 0.999, 1e-8, 0.01};
  // Programs by shape of the parameter, "[4, 16]", or one for all shapes, "".
  std::map<std::string, UpdateProgramText> programs{};
  std::vector<std::string> states{};  // the names of their states
  int scalars = kStepScalars;         // values per step: 3, or 5 and numbers
  bool operator==(const UpdateRule&) const = default;
};

// Loss scaling on devices that compute in f16 (ops/update_ops.h).
struct LossScale {
  double first = 65536;       // a power of two
  int64_t good_steps = 2000;  // steps until it doubles
  bool operator==(const LossScale&) const = default;
};

struct Optimizer {
  std::vector<UpdateRule> rules{UpdateRule{}};  // no rules: gradients only
  std::map<std::string, int> rule_of{};         // by parameter; default: the first
  double max_norm = 0;                          // for the gradient; 0: no clipping
  bool gradient_norm = true;                    // computed even without clipping
  // The share of itself that each parameter's average keeps per step; 0: no averages.
  double average = 0;
  LossScale loss_scale{};    // if losses are scaled
  bool scales_loss = false;  // as a plan needs it: analyse() of lower/lower.h

  bool updates() const { return !rules.empty(); }
  // Return the number of a parameter's rule, and the rule.
  int rule_number(const std::string& parameter) const {
    const auto found = rule_of.find(parameter);
    return found == rule_of.end() ? 0 : found->second;
  }
  const UpdateRule& rule_for(const std::string& parameter) const {
    return rules.at(at(rule_number(parameter)));
  }
};

// Throws Error(kCaller) if there is none, or if it takes other numbers.
const UpdateOp& update_op_of(const UpdateRule& rule);
// Requires: the rule has one for this shape.
const UpdateProgramText& program_for(const UpdateRule& rule, const std::vector<Size>& shape);

// Returns the input (kScalar, f64[scalars of the rule]) that a rule's updates read.
std::string scalars_of(int rule);
// Requires: the name is one of scalars_of().
int rule_of_scalars(std::string_view name);

}  // namespace medley
