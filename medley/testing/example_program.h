#pragma once

// Hand-made programs, for tests and benchmarks of program execution.

#include "medley/program/program.h"

namespace medley {

// Data parallelism with every feature of a program. Device d of the mesh has rows[d] rows of each
// micro-batch. The last micro-batch's backward posts the exchange that the update awaits.
//
//   forward          h = test.scale(x, w)   post all_gather h   wait   loss += test.loss(g)
//   backward         sum += test.gradient(g, h)
//   backward (last)  the same, then post all_reduce sum
//   update           wait   norm = test.norm(synced)   w = test.update(w, synced)
struct ExampleProgram {
  Program program;
  ValueId w, x, loss, norm, synced;
};
ExampleProgram data_parallel_program(const std::vector<int64_t>& rows, int microbatches);

// Returns a program of one device and call: x -> op -> op -> ... with `num_ops` ops in segments of
// `segment_ops`, and an all-reduce of a one-device group between two segments.
ExampleProgram chain_program(int num_ops, int segment_ops);

}  // namespace medley
