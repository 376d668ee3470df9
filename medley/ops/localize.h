#pragma once

// Turns an op into its local form, for the tables of rules. Sizes follow from the local types of
// operands and results.

#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// Sets argument k to the shape of the first result.
template <size_t k>
void result_shape(Op& local, const LocalForm& form) {
  local.arguments.at(k) = form.results.at(0).shape;
}

// Returns whether the label of this name is cut.
bool cuts(const LocalForm& form, std::string_view label);
// Returns the start of a select label's local range, in rows of the whole dim. Requires: cuts(form,
// label).
Size select_offset(const LocalForm& form, std::string_view label);
// Returns the product of local sizes of these dims, cut factors counted whole: the N of a mean.
Size whole_count(const LocalForm& form, size_t operand, const std::vector<size_t>& dims);

// Returns an operand's type before sharding.
const TensorType& whole_operand(const LocalForm& form, size_t i);
const TensorType& whole_result(const LocalForm& form, size_t i);

}  // namespace medley
