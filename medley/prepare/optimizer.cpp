#include "medley/prepare/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/ops/rule.h"

namespace medley {

const UpdateOp& update_op_of(const UpdateRule& rule) {
  const UpdateOp* op = find_update_kind(rule.kind);
  if (!op) {
    std::vector<std::string_view> known;
    for (const UpdateOp& each : update_ops()) known.push_back(each.kind());
    throw Error(
        Blame::kCaller,
        fmt::format(
            "optimizer: found \"{}\", expected one of {}", rule.kind, fmt::join(known, ", ")));
  }
  if (rule.numbers.size() != at(op->numbers))
    throw Error(Blame::kCaller,
                fmt::format("optimizer {}: found {} numbers, expected {}",
                            rule.kind,
                            rule.numbers.size(),
                            op->numbers));
  if (op->has_program == rule.programs.empty() ||
      rule.states.size() != (op->has_program ? op->states.size() : 0))
    throw Error(Blame::kCaller,
                fmt::format("optimizer {}: found {} and {} names of states, expected {}",
                            rule.kind,
                            rule.programs.empty() ? "no program" : "a program",
                            rule.states.size(),
                            op->has_program ? "a program and a name for each state" : "neither"));
  if (const int more = rule.scalars - kManyScalars;
      rule.scalars != kStepScalars && more != 0 && (more != op->numbers) && !op->has_program)
    throw Error(Blame::kCaller,
                fmt::format("optimizer {}: found {} scalars, expected {}, {} or {}",
                            rule.kind,
                            rule.scalars,
                            kStepScalars,
                            kManyScalars,
                            kManyScalars + op->numbers));
  return *op;
}

UpdateProgramText program_of(std::string text) {
  UpdateProgramText program{std::move(text)};
  const Graph graph = parse_graph(program.text, "optimizer");
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kState)
      program.states.push_back(graph.values[at(input.value)].type);
  for (const Op& op : graph.ops) {
    const auto types = [&](const std::vector<ValueId>& values) {
      std::vector<TensorType> found;
      for (ValueId value : values)
        found.push_back(value == kNone ? TensorType{} : graph.values[at(value)].type);
      return found;
    };
    program.flops += work(op, types(operands(op)), types(op.results), {1}).flops;
  }
  return program;
}

const UpdateProgramText& program_for(const UpdateRule& rule, const std::vector<Size>& shape) {
  const auto all = rule.programs.find("");
  if (all != rule.programs.end()) return all->second;
  return rule.programs.at(fmt::format("[{}]", fmt::join(evaluate_all(shape, {}), ", ")));
}

std::string scalars_of(int rule) { return rule == 0 ? "scalars" : fmt::format("scalars.{}", rule); }

int rule_of_scalars(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? 0 : std::stoi(std::string(name.substr(dot + 1)));
}

}  // namespace medley
