#pragma once

// Tools of the passes: copy a graph op by op while replacing values, and read ops with any
// arguments that verify() allows.

#include <optional>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

class Rewrite {
 public:
  // Starts with the name, symbols and inputs of `from`, which must outlive it.
  explicit Rewrite(const Graph& from);

  const Graph& to() const { return to_; }
  // Returns the op with its operands in the new graph; its results are unchanged.
  Op translate(const Op& op) const;
  // Appends a translated op that defines the old results; new results get fresh ids.
  void keep(Op translated);
  // Appends a new op with one result, with phase, module and source of `place`.
  ValueId emit(const Op& place,
               std::string_view name,
               std::vector<Argument> arguments,
               TensorType type);
  // Like emit(), for aten.full with every element equal to `fill`.
  ValueId emit_full(const Op& place, Argument fill, const TensorType& type);
  // Makes every later use of `old` a use of `by`, a value of the new graph.
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
// Return the tensor or the number of argument `i`, if it has one.
ValueId tensor_argument(const Op& op, size_t i);
std::optional<double> number_argument(const Op& op, size_t i);
bool has_one_result(const Op& op);
// Returns whether an op is an aten.slice with an explicit end, x[:16] rather than x[1:], or its
// gradient.
bool has_end(const Op& op);
// Returns whether the op is aten.view, _unsafe_view or reshape of one tensor, with one result.
bool is_view(const Op& op);

}  // namespace medley
