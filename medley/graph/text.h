#pragma once

// The text form of a graph. Printed graphs parse back equal. One statement per line:
//
//    medley-graph 1
//    graph "gpt"
//    symbols b
//    %0 = parameter "wte.weight" : f32[256, 64]
//    %1 = batch "input_ids" : i64[b, 64]
//    %2 = scalar "rng" : i64[2]
//    %3 = aten.embedding.default(%0, %1, -1, false, false) : f32[b, 64, 64] @forward "wte"
//    %4, _ = aten.native_dropout.default(%3, 0.1, true) : f32[b, 64, 64], none @forward ""
//    %5 = aten.view.default(%3, [b*64, 64]) : f32[b*64, 64] @forward "h.0" at "gpt.py:12"
//    %6 = aten.cat.default([%3, %4], 1) : f32[b, 128, 64] @forward "h.0"
//    output loss %80
//    output gradient "wte.weight" %99
//    output buffer "bn.running_mean" %30
//
// Arguments: none, true, false, 12, b*64 (a Size), 1.5 / 1e-05 / inf / -inf / nan (a float always
// has one of ". e n"), "text", f32 (a dtype), %3, [%3, none], [1, b*2], [true, false], [1.0, 2.0];
// an empty list is written "sizes[]", "values[]", "floats[]" or "bools[]". Floats print with the
// shortest digits that parse back to the same double. `at "..."` is optional. "#" starts a comment
// line.

#include <string>
#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

std::string print(const Graph& graph);
// Throws Error(kCaller) "<file>:<line>: found ..., expected ..." for text that print() cannot
// write.
Graph parse_graph(std::string_view text, std::string_view file);
// Returns the SHA-256 of the canonical text (ids renumbered in order of definition, no sources) as
// 64 hex digits.
std::string hash(const Graph& graph);

}  // namespace medley
