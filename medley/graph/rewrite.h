#pragma once

// What the passes share: copying a graph op by op while replacing values, and reading ops whose
// arguments may be anything that verify() lets through.

#include <optional>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

class Rewrite {
 public:
  // Starts with the name, the symbols and the inputs of `from`, which must outlive it.
  explicit Rewrite(const Graph& from);

  const Graph& to() const { return to_; }
  // Returns the op with its operands in the new graph; its results are still the old ones.
  Op translate(const Op& op) const;
  // Appends a translated op and lets it define the old results; new results get fresh ids.
  void keep(Op translated);
  // Appends a new op with one result, in the place (phase, module, source) of an old op.
  ValueId emit(const Op& place,
               std::string_view name,
               std::vector<Argument> arguments,
               TensorType type);
  // The same of aten.full, every element being `fill`.
  ValueId emit_full(const Op& place, Argument fill, const TensorType& type);
  // Every later use of `old` becomes a use of `by`, a value of the new graph.
  void replace(ValueId old, ValueId by);
  ValueId now(ValueId old) const;
  Graph finish();

 private:
  const Graph& from_;
  Graph to_;
  std::vector<ValueId> now_;
};

// Returns the op that produces the value, or null for an input.
const Op* producer_of(const Graph& graph, ValueId value);
// Returns the tensor or the number that argument `i` is, if it is one.
ValueId tensor_argument(const Op& op, size_t i);
std::optional<double> number_argument(const Op& op, size_t i);
bool has_one_result(const Op& op);
// Whether an op is an aten.slice with an end of its own, x[:16] rather than x[1:], or the gradient
// of one.
bool has_end(const Op& op);
// Whether the op is aten.view, _unsafe_view or reshape with one tensor, and one result.
bool is_view(const Op& op);

}  // namespace medley
