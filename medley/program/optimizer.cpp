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
  return *op;
}

std::string scalars_of(int rule) { return rule == 0 ? "scalars" : fmt::format("scalars.{}", rule); }

int rule_of_scalars(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? 0 : std::stoi(std::string(name.substr(dot + 1)));
}

}  // namespace medley
