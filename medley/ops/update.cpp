// The ops of the optimizer, which planning appends.

#include "medley/ops/families.h"
#include "medley/ops/instance.h"

namespace medley {
namespace {

std::optional<Instance> add_n(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  std::vector<int> all;
  for (size_t i = 0; i < builder.num_operands(); ++i) {
    if (builder.operand(i) != builder.result()) return std::nullopt;
    all.push_back(static_cast<int>(i));
  }
  for (size_t d = 0; d < builder.result().size(); ++d) {
    const int label = builder.label(builder.result()[d]);
    for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, d, label);
    builder.label_result(0, d, label);
  }
  return builder.finish({all});
}

}  // namespace

std::vector<Rule> update_rules() {
  return {
      {"medley.adamw.default", ".., .., .., .., ..?, _ -> .., .., .., ..", ""},
      {"medley.sgd.default", ".., .., ..?, ..?, _ -> .., .., ..", ""},
      {"medley.sum_squares.default", ".. -> 1", ""},
      {"medley.add_n.default", "", "", nullptr, add_n},
      {"medley.clip_scale.default", "1 -> 1, 1", ""},
      {"medley.scale_scalars.default", "_, 1 -> _", ""},
      {"medley.accumulate.default", ".. -> ..", "{0}"},
  };
}

}  // namespace medley
