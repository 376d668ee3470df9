#pragma once

// The tables that rules() concatenates, one per family of ops.

#include <cstdint>
#include <vector>

#include "medley/ops/rule.h"

namespace medley {

// Values of at::Reduction, an argument of losses and of embedding_bag.
inline constexpr int64_t kReduceNone = 0, kReduceMean = 1, kReduceSum = 2;

std::vector<Rule> pointwise_rules();
std::vector<Rule> contraction_rules();
std::vector<Rule> linalg_rules();
std::vector<Rule> layout_rules();
std::vector<Rule> slicing_rules();
std::vector<Rule> normalisation_rules();
std::vector<Rule> indexing_rules();
std::vector<Rule> reduction_rules();
std::vector<Rule> factory_rules();
std::vector<Rule> attention_rules();
std::vector<Rule> convolution_rules();
std::vector<Rule> update_rules();

}  // namespace medley
