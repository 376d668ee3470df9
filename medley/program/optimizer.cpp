#include "medley/program/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/base/at.h"
#include "medley/base/error.h"

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
  if (op->has_program == rule.program.empty() ||
      rule.states.size() != (op->has_program ? op->states.size() : 0))
    throw Error(Blame::kCaller,
                fmt::format("optimizer {}: found {} and {} names of states, expected {}",
                            rule.kind,
                            rule.program.empty() ? "no program" : "a program",
                            rule.states.size(),
                            op->has_program ? "a program and a name for each state" : "neither"));
  return *op;
}

std::string scalars_of(int rule) { return rule == 0 ? "scalars" : fmt::format("scalars.{}", rule); }

int rule_of_scalars(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? 0 : std::stoi(std::string(name.substr(dot + 1)));
}

}  // namespace medley
