#pragma once

// What happens to a graph before anything is sharded: the loss weights move to a prologue,
// gradients and the loss are accumulated over micro-batches, and the optimizer's update is
// appended. Knows nothing of devices or plans.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

struct Optimizer {
  std::string kind = "adamw";  // "adamw", "sgd" or "none": gradients only
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double max_norm = 0;        // of the gradient; 0: no clipping
  bool gradient_norm = true;  // computed even without clipping
};

// Names of the values that a step reports.
struct Prepared {
  Graph graph;
  std::vector<std::string> names;  // [op] stable name in the graph given; "update/<parameter>" and
                                   // "accumulate/<output>" for what is added
  ValueId gradient_norm = kNone;
  bool weights_in_prologue =
      true;  // false: a weight depends on parameters, so several micro-batches would not be exact
  // [op] whether it does again, under its name, what an op of the forward phase did (recompute.h).
  // Empty: none does.
  std::vector<bool> recomputed;
};

// The name of the op that adds up the squares of all gradients.
inline constexpr const char* kNormSum = "norm/sum";

// The result has the inputs "scalars" (kScalar, f64[3]: learning rate, step from 1, clip scale) and
// the optimizer's state (kState, such as "exp_avg:<parameter>"), and the outputs kParameter and
// kState. Gradient and loss outputs are accumulated values.
Prepared prepare(const Graph& graph, const Optimizer& optimizer);

// Of the graph of one stage: what it is in the whole.
struct StageContext {
  std::vector<std::string> names;  // [op] stable names in the whole graph
  int stage = 0;
  // Parameters that other stages hold, too: the stages that have a part of the gradient, ascending.
  std::map<std::string, std::vector<int>> tied{};
  // Of them, those whose gradient counts for the norm in another stage.
  std::set<std::string> counted_elsewhere{};
  std::string recompute = "none";  // as in a plan
  int in_flight = 1;               // micro-batches
};
// The same for the graph of one stage. The norm is that of its own gradients. A part of the
// gradient of a tied parameter is sent as "<parameter>@<stage>", and every holder adds up all
// parts.
Prepared prepare(const Graph& graph, const Optimizer& optimizer, const StageContext& context);

}  // namespace medley
