#pragma once

// Builds instances for the tables of rules: from a pattern, or dim by dim if labels depend on
// arguments.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// Returns the instance of a line of pattern.h, or nothing if the op's operands do not fit.
std::optional<Instance> instantiate(std::string_view pattern,
                                    std::string_view linear,
                                    const Graph& graph,
                                    const Op& op);

// Builds an instance dim by dim. Unlabelled dims are locked, each by itself.
class InstanceBuilder {
 public:
  InstanceBuilder(const Graph& graph, const Op& op);

  size_t num_operands() const { return operand_shapes_.size(); }
  const std::vector<Size>& operand(size_t i) const { return operand_shapes_.at(i); }
  const std::vector<Size>& result(size_t i = 0) const { return result_shapes_.at(i); }

  // Returns a new label, or kNone, which carries no dim, if the size is 1.
  int label(const Size& size, bool locked = false);
  // Appends a label to the ordered product of a dim.
  void label_operand(size_t i, size_t dim, int label);
  void label_result(size_t i, size_t dim, int label);
  // Adds one label for a dim of operand i and a dim of result j. Requires: the sizes are equal.
  void map(size_t i, size_t dim, size_t j, size_t result_dim);

  Instance& instance() { return instance_; }
  Instance finish(std::vector<std::vector<int>> linear);

 private:
  std::vector<std::vector<Size>> operand_shapes_, result_shapes_;
  Instance instance_;
};

// Returns the instance as a line of pattern.h with sizes: "d0=b d1=3! d2=4, ... -> ...  {0}". A
// label's first occurrence shows its size and marks.
std::string to_string(const Instance& instance, const std::vector<std::string>& symbols);

// Return arguments of an op by position. `dim` counts from the front for either sign. Empty if
// absent or of another type.
bool is_none(const Op& op, size_t argument);
std::optional<int64_t> integer(const Op& op, size_t argument);
std::optional<double> number(const Op& op, size_t argument);  // an integer, a float or a bool
bool flag(const Op& op, size_t argument);                     // false if absent
std::optional<size_t> dim(const Op& op, size_t argument, size_t rank);
std::optional<std::vector<size_t>> dims(const Op& op,
                                        size_t argument,
                                        size_t rank);  // sorted; none or []: all

}  // namespace medley
