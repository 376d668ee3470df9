#include "medley/checkpoint/match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "medley/base/error.h"
#include "medley/prepare/prepare.h"

namespace medley {
namespace {

// By kind and name; parameters first, so that messages name them.
using Descriptions = std::map<std::pair<std::string, std::string>, std::string>;

template <typename Value>
Descriptions descriptions_of(const std::vector<Value>& values, bool parameters_only) {
  Descriptions found;
  for (const Value& value : values)
    if (!parameters_only || value.kind != "state")
      found[{value.kind, value.name}] = describe(value.dtype, value.shape);
  return found;
}

[[noreturn]] void refuse(const std::string& folder,
                         const std::pair<std::string, std::string>& key,
                         const std::string& found,
                         const std::string& expected) {
  throw Error(
      Blame::kCaller,
      fmt::format(
          "{}: {} \"{}\": found {}, expected {}", folder, key.first, key.second, found, expected));
}

}  // namespace

std::string describe(DType dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{}[{}]", to_string(dtype), fmt::join(shape, ", "));
}

void require_match(const Manifest& manifest,
                   const std::string& folder,
                   const std::vector<HeldValue>& values,
                   bool parameters_only) {
  const Descriptions there = descriptions_of(manifest.values, parameters_only);
  const Descriptions here = descriptions_of(values, parameters_only);
  std::set<std::string> may_lack;
  for (const HeldValue& value : values)
    if (!value.changes) may_lack.insert(value.name);
  // A run without averages.
  const auto is_average = [](const auto& value) {
    const auto& [kind, name] = value.first;
    return kind == "state" && role_of_state(name).kind == StateRole::Kind::kAverage;
  };
  const bool starts_averages = std::ranges::none_of(there, is_average);
  for (const std::string kind : {"parameter", "buffer", "state"}) {
    for (const auto& value : here) {
      const auto& [key, expected] = value;
      if (key.first != kind) continue;
      const auto found = there.find(key);
      if (found == there.end() && kind == "buffer" && may_lack.contains(key.second)) continue;
      if (found == there.end() && is_loss_scale(kind, key.second)) continue;
      if (starts_averages && is_average(value)) continue;
      if (found == there.end()) refuse(folder, key, "none", expected);
      if (found->second != expected) refuse(folder, key, found->second, expected);
    }
    for (const auto& [key, found] : there)
      if (key.first == kind && kind != "buffer" && !here.contains(key) &&
          !is_loss_scale(kind, key.second))
        refuse(folder, key, found, "none: the run has no such value");
  }
}

}  // namespace medley
