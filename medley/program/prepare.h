#pragma once

// What happens to a graph before anything is sharded: the loss weights move to a prologue,
// gradients and the loss are accumulated over micro-batches, and the optimizer's update is
// appended. Knows nothing of devices or plans.

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
};

// The result has the inputs "scalars" (kScalar, f64[3]: learning rate, step from 1, clip scale) and
// the optimizer's state (kState, such as "exp_avg:<parameter>"), and the outputs kParameter and
// kState. Gradient and loss outputs are accumulated values.
Prepared prepare(const Graph& graph, const Optimizer& optimizer);

}  // namespace medley
