#include "medley/ops/rule.h"

#include <algorithm>
#include <unordered_map>

#include "medley/base/error.h"
#include "medley/ops/families.h"
#include "medley/ops/instance.h"

namespace medley {

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kAll = [] {
    std::vector<Rule> sorted;
    for (const auto& family : {pointwise_rules(),
                               contraction_rules(),
                               linalg_rules(),
                               layout_rules(),
                               slicing_rules(),
                               normalisation_rules(),
                               indexing_rules(),
                               reduction_rules(),
                               factory_rules(),
                               attention_rules(),
                               convolution_rules(),
                               update_rules()})
      sorted.insert(sorted.end(), family.begin(), family.end());
    std::ranges::sort(sorted, {}, &Rule::op);
    const auto twice = std::ranges::adjacent_find(sorted, {}, &Rule::op);
    MEDLEY_CHECK_EQ(twice == sorted.end() ? "" : twice->op, "");
    return sorted;
  }();
  return kAll;
}

const Rule* find_rule(std::string_view op) {
  static const auto kByOp = [] {
    std::unordered_map<std::string_view, const Rule*> by_op;
    for (const Rule& rule : rules()) by_op.emplace(rule.op, &rule);
    return by_op;
  }();
  const auto found = kByOp.find(op);
  return found == kByOp.end() ? nullptr : found->second;
}

std::optional<Instance> instantiate(const Graph& graph, const Op& op) {
  const Rule* rule = find_rule(op.name);
  if (!rule) return std::nullopt;
  if (rule->instance) return rule->instance(graph, op);
  return instantiate(rule->pattern, rule->linear, graph, op);
}

WorkClass work_class(std::string_view op) {
  const Rule* rule = find_rule(op);
  return rule ? rule->work : WorkClass::kMemory;
}

}  // namespace medley
