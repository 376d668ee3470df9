#pragma once

// A graph of one op, for tests.

#include <string>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/graph/text.h"

namespace medley {

// Returns a graph with inputs %0, %1, ... of these types and an op in text form, without results
// and phase: one_op({"f32[b, 4]"}, "aten.t.default(%0) : f32[4, b]"). Symbols: b, length, offset,
// full.
inline Graph one_op(const std::vector<std::string>& inputs, const std::string& op) {
  std::string text = "medley-graph 1\ngraph \"g\"\nsymbols b length offset full\n";
  size_t id = 0;
  for (const std::string& type : inputs) {
    text += "%" + std::to_string(id) + " = batch \"x" + std::to_string(id) + "\" : " + type + "\n";
    ++id;
  }
  std::string results;
  int depth = 0;
  const size_t types = op.rfind(" : ") + 3;
  for (size_t i = types; i <= op.size(); ++i) {
    if (i < op.size()) depth += op[i] == '[' ? 1 : op[i] == ']' ? -1 : 0;
    if (i < op.size() && (op[i] != ',' || depth > 0)) continue;
    const bool none = op.substr(0, i).ends_with("none");
    results += (results.empty() ? "" : ", ") + (none ? "_" : "%" + std::to_string(id++));
  }
  return parse_graph(text + results + " = " + op + " @forward \"\"\n", "test");
}

}  // namespace medley
