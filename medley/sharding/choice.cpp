#include "medley/sharding/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/base/error.h"

namespace medley {
namespace {

const Instance& instance_of(const Factors& factors, OpId op) {
  const std::shared_ptr<const Instance>& instance = factors.instances[at(op)];
  MEDLEY_CHECK(instance != nullptr);
  return *instance;
}

int num_factors(const Factors& factors, OpId op, int label) {
  return static_cast<int>(factors.labels[at(op)][at(label)].size());
}

// Returns the position of a cut in a tensor with these labels of dims, or -1 without the label.
int find_cut(const Factors& factors,
             OpId op,
             const std::vector<std::vector<int>>& dims,
             const Cut& cut) {
  int position = 0;
  for (const std::vector<int>& dim : dims) {
    for (int label : dim) {
      if (label == cut.label) return position + cut.factor;
      position += num_factors(factors, op, label);
    }
  }
  return -1;
}

std::optional<Cut> cut_at(const Factors& factors,
                          OpId op,
                          const std::vector<std::vector<int>>& dims,
                          int position) {
  int start = 0;
  for (const std::vector<int>& dim : dims) {
    for (int label : dim) {
      const int count = num_factors(factors, op, label);
      if (position < start + count) return Cut{label, position - start};
      start += count;
    }
  }
  return std::nullopt;
}

std::optional<Choice> cut_choice(const Factors& factors,
                                 OpId op,
                                 const std::vector<std::vector<int>>& dims,
                                 const AxisPlacement& placement) {
  if (placement.holding != Holding::kSharded) return std::nullopt;
  const std::optional<Cut> cut = cut_at(factors, op, dims, placement.position);
  if (!cut) return std::nullopt;
  const Choice choice{ChoiceKind::kCut, *cut, placement.part, -1};
  if (!is_legal(factors, op, choice)) return std::nullopt;
  return choice;
}

AxisPlacement absent_placement(Absent absent) {
  switch (absent) {
    case Absent::kSum:
      return partial_sum();
    case Absent::kMax:
      return {Holding::kPartialMax, -1, -1};
    case Absent::kUnaffected:
      return replicated();
  }
  return replicated();
}

}  // namespace

bool is_legal(const Factors& factors, OpId op, const Choice& choice) {
  if (choice.kind == ChoiceKind::kReplicate) return true;
  const std::shared_ptr<const Instance>& instance = factors.instances[at(op)];
  if (!instance) return false;
  if (choice.kind == ChoiceKind::kLinear)
    return choice.group >= 0 && choice.group < static_cast<int>(instance->linear.size());
  if (choice.cut.label < 0 || choice.cut.label >= static_cast<int>(instance->labels.size()))
    return false;
  const Label& label = instance->labels[at(choice.cut.label)];
  if (label.locked || label.composite || (label.select && choice.cut.factor != 0)) return false;
  return choice.cut.factor >= 0 && choice.cut.factor < num_factors(factors, op, choice.cut.label);
}

std::vector<AxisPlacement> operand_placements(const Graph& graph,
                                              const Factors& factors,
                                              OpId op,
                                              const Choice& choice) {
  const size_t count = operands(graph.ops[at(op)]).size();
  std::vector<AxisPlacement> placements(count);
  if (choice.kind == ChoiceKind::kReplicate) return placements;
  const Instance& instance = instance_of(factors, op);
  if (choice.kind == ChoiceKind::kLinear) {
    for (int operand : instance.linear[at(choice.group)]) placements[at(operand)] = partial_sum();
    return placements;
  }
  for (size_t i = 0; i < count; ++i) {
    const int position = find_cut(factors, op, instance.operands[i], choice.cut);
    if (position >= 0) placements[i] = sharded(position, choice.part);
  }
  return placements;
}

std::vector<AxisPlacement> result_placements(const Graph& graph,
                                             const Factors& factors,
                                             OpId op,
                                             const Choice& choice) {
  const size_t count = graph.ops[at(op)].results.size();
  std::vector<AxisPlacement> placements(count);
  if (choice.kind == ChoiceKind::kReplicate) return placements;
  const Instance& instance = instance_of(factors, op);
  for (size_t i = 0; i < count; ++i) {
    if (choice.kind == ChoiceKind::kLinear) {
      placements[i] = partial_sum();
      continue;
    }
    const int position = find_cut(factors, op, instance.results[i], choice.cut);
    placements[i] = position >= 0 ? sharded(position, choice.part)
                                  : absent_placement(instance.absent[i][at(choice.cut.label)]);
  }
  return placements;
}

namespace {

template <typename PlacementsOf>
std::vector<Placement> on_all_axes(const std::vector<Choice>& choice,
                                   const PlacementsOf& placements_of) {
  std::vector<Placement> all;
  for (const Choice& axis : choice) {
    const std::vector<AxisPlacement> placements = placements_of(axis);
    all.resize(placements.size());
    for (size_t i = 0; i < placements.size(); ++i) all[i].push_back(placements[i]);
  }
  return all;
}

}  // namespace

std::vector<Placement> operand_placements(const Graph& graph,
                                          const Factors& factors,
                                          OpId op,
                                          const std::vector<Choice>& choice) {
  return on_all_axes(
      choice, [&](const Choice& axis) { return operand_placements(graph, factors, op, axis); });
}

std::vector<Placement> result_placements(const Graph& graph,
                                         const Factors& factors,
                                         OpId op,
                                         const std::vector<Choice>& choice) {
  return on_all_axes(
      choice, [&](const Choice& axis) { return result_placements(graph, factors, op, axis); });
}

std::optional<Choice> cut_for_operand(const Graph& graph,
                                      const Factors& factors,
                                      OpId op,
                                      int operand,
                                      const AxisPlacement& placement) {
  const std::shared_ptr<const Instance>& instance = factors.instances[at(op)];
  if (!instance || operands(graph.ops[at(op)])[at(operand)] == kNone) return std::nullopt;
  return cut_choice(factors, op, instance->operands[at(operand)], placement);
}

std::optional<Choice> cut_for_result(
    const Graph&, const Factors& factors, OpId op, int result, const AxisPlacement& placement) {
  const std::shared_ptr<const Instance>& instance = factors.instances[at(op)];
  if (!instance) return std::nullopt;
  return cut_choice(factors, op, instance->results[at(result)], placement);
}

std::string to_string(const Factors& factors,
                      OpId op,
                      const Choice& choice,
                      const std::vector<std::string>& parts) {
  if (choice.kind == ChoiceKind::kReplicate) return "replicate";
  const Instance& instance = instance_of(factors, op);
  if (choice.kind == ChoiceKind::kLinear)
    return fmt::format("linear {{{}}}", fmt::join(instance.linear[at(choice.group)], "+"));
  const std::string& label = instance.labels[at(choice.cut.label)].name;
  const std::string& part = parts[at(choice.part)];
  if (num_factors(factors, op, choice.cut.label) == 1) return fmt::format("{} {}", label, part);
  return fmt::format("{}.{} {}", label, choice.cut.factor, part);
}

}  // namespace medley
