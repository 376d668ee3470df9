#pragma once

// Pairwise problems in the shape of SPMD synthesis for a transformer's forward and backward, for
// tests and benchmarks. They know factors, placements and redistributions, but no real model:
// spmd_problem.h synthesises a captured graph.
//
//   x -- norm -- q, k, v -- scores -- softmax -- mix -- out -- add -- norm -- up -- gelu -- down --
//   add
//
// The problem includes their gradients, each weight's storage and its materialised use, and a copy
// for each value with several readers.

#include "medley/solve/pbqp.h"

namespace medley {

struct TransformerProblem {
  int layers = 12;
  // Devices and part classes on each axis. Per axis an op has one choice per factor and class, and
  // one to replicate. One axis of two classes: about 8 choices per variable; a second axis of one
  // class: about 40.
  struct Axis {
    int devices = 8;
    int classes = 2;
    double picoseconds_per_byte = 770;
  };
  std::vector<Axis> axes{{}};
  // Multiplies every unary by its own number in [1 - spread, 1 + spread].
  double spread = 0;
  uint64_t seed = 0;
};

Pbqp transformer_problem(const TransformerProblem& shape);

}  // namespace medley
