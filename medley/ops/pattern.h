#pragma once

// The one-line language of rules: dims of operands, "->", dims of results.
//
//   line    = tensors "->" tensors          tensors = tensor { "," tensor }
//   tensor  = ["#"] [dim ...] ["?"] { "=" label | "^" label }   or "_"
//   dim     = label mark* | "(" label mark* ... ")" | [name] ".." mark* | "1"
//   mark    = "!" locked | "~" select | "%" composite | "&" may be of size 1: broadcast then
//
//   (g r)   an ordered product, the first varies slowest
//   ..      any number of leading dims, aligned at the right between tensors, broadcast;
//           "x.." likewise for the dims x0, x1, ...
//   1       a dim of size 1; as a whole tensor also one of rank 0
//   _       a tensor of any shape, without labels.
//   `#`     only the shape of the operand matters
//   `?`     the operand may be absent
//   `=v`    the result is unaffected when v is split; ^v: it is a partial maximum;
//           otherwise a partial sum
//
// Knows nothing of graphs or shapes.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "medley/ops/rule.h"

namespace medley {

struct PatternDim {
  enum class Kind : uint8_t { kLabels, kDots, kOne };
  Kind kind = Kind::kLabels;
  std::vector<std::string> labels;  // for kDots: its name, or ".."
  bool broadcast = false;
  bool operator==(const PatternDim&) const = default;
};

struct PatternTensor {
  std::vector<PatternDim> dims;
  bool any = false;         // "_"
  bool optional = false;    // "?"
  bool shape_only = false;  // "#"
  std::vector<std::pair<std::string, Absent>> absent;
  bool operator==(const PatternTensor&) const = default;
};

struct PatternLabel {
  std::string name;
  bool locked = false, select = false, composite = false;
  bool operator==(const PatternLabel&) const = default;
};

struct Pattern {
  std::vector<PatternTensor> operands, results;
  std::vector<PatternLabel> labels;  // in order of appearance; marks of all places united
};

// Throws Error(kUs) with the pattern and the expected text.
Pattern parse_pattern(std::string_view text);

// Returns the groups of "{0}{1+2}": [[0], [1, 2]]. Throws Error(kUs).
std::vector<std::vector<int>> parse_linear(std::string_view text);

}  // namespace medley
