#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/graph.h"
#include "medley/ops/instance.h"
#include "medley/ops/pattern.h"

namespace medley {
namespace {

using Names = std::vector<std::string>;  // for the labels of one dim

// One tensor of the op with its line in the pattern.
struct Match {
  const PatternTensor* pattern;
  std::vector<Size> shape;
  std::vector<Names> names;     // [dim]
  std::vector<bool> broadcast;  // [dim]: may be of size 1
};

// Returns the index in operands(op) of each operand of the pattern, kNone if absent; nothing if
// they do not fit.
std::optional<std::vector<int>> match_operands(const Pattern& pattern, const Op& op) {
  std::vector<int> found;
  int next = 0;
  for (const Argument& argument : op.arguments) {
    if (std::holds_alternative<std::vector<ValueArgument>>(argument)) return std::nullopt;
    const bool is_value = std::holds_alternative<ValueArgument>(argument);
    if (found.size() == pattern.operands.size()) {
      if (is_value) return std::nullopt;
      continue;
    }
    const bool optional = pattern.operands[found.size()].optional;
    if (is_value) {
      const bool absent = std::get<ValueArgument>(argument).value == kNone;
      if (absent && !optional) return std::nullopt;
      found.push_back(absent ? kNone : next);
      ++next;
    } else if (optional && std::holds_alternative<NoneArgument>(argument)) {
      found.push_back(kNone);
    }
  }
  while (found.size() < pattern.operands.size()) {
    if (!pattern.operands[found.size()].optional) return std::nullopt;
    found.push_back(kNone);
  }
  return found;
}

size_t dots_width(const Match& match) {
  return match.shape.size() + 1 - match.pattern->dims.size();
}

// Fills match.names; returns false if the rank does not fit.
bool name_dims(Match& match, const std::map<std::string, size_t>& widths) {
  for (const PatternDim& each : match.pattern->dims) {
    if (each.kind == PatternDim::Kind::kLabels) {
      match.names.push_back(each.labels);
      match.broadcast.push_back(each.broadcast);
    } else if (each.kind == PatternDim::Kind::kOne) {
      match.names.emplace_back();
      match.broadcast.push_back(false);
    } else {
      const size_t widest = widths.at(each.labels[0]);
      const size_t width = dots_width(match);
      for (size_t d = widest - width; d < widest; ++d) {
        match.names.push_back({each.labels[0] + std::to_string(d)});
        match.broadcast.push_back(true);
      }
    }
  }
  return match.names.size() == match.shape.size();
}

// Solves the sizes of every dim's labels. Returns false on a contradiction or too many unknowns.
bool solve_sizes(const std::vector<Match>& matches, std::map<std::string, Size>& sizes) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Match& match : matches) {
      for (size_t d = 0; d < match.names.size(); ++d) {
        Size known(1);
        std::vector<const std::string*> unknown;
        for (const std::string& name : match.names[d]) {
          const auto found = sizes.find(name);
          if (found == sizes.end()) {
            unknown.push_back(&name);
          } else {
            known = known * found->second;
          }
        }
        if (unknown.size() != 1 || (match.broadcast[d] && match.shape[d] == Size(1))) continue;
        const auto rest = divide(match.shape[d], known);
        if (!rest) return false;
        sizes[*unknown[0]] = *rest;
        changed = true;
      }
    }
  }
  for (const Match& match : matches) {
    for (size_t d = 0; d < match.names.size(); ++d) {
      if (match.broadcast[d] && match.shape[d] == Size(1)) continue;
      Size product(1);
      for (const std::string& name : match.names[d]) {
        const auto found = sizes.find(name);
        if (found == sizes.end()) return false;
        product = product * found->second;
      }
      if (product != match.shape[d]) return false;
    }
  }
  return true;
}

// "x0" takes its marks from "x..", "..0" from "..".
const PatternLabel& marks_of(const Pattern& pattern, const std::string& name) {
  auto found = std::ranges::find(pattern.labels, name, &PatternLabel::name);
  if (found == pattern.labels.end())
    found = std::ranges::find(pattern.labels,
                              name.substr(0, name.find_last_not_of("0123456789") + 1),
                              &PatternLabel::name);
  MEDLEY_CHECK(found != pattern.labels.end());
  return *found;
}

class Labels {
 public:
  Labels(const Pattern& pattern, const std::map<std::string, Size>& sizes)
      : pattern_(pattern), sizes_(sizes) {}

  std::vector<std::vector<int>> of(const Match& match) {
    std::vector<std::vector<int>> ids(match.shape.size());
    if (match.pattern->any) return ids;
    for (size_t d = 0; d < match.names.size(); ++d) {
      if (match.shape[d] == Size(1)) continue;
      for (const std::string& name : match.names[d]) {
        const int id = this->id(name);
        if (id != kNone) ids[d].push_back(id);
      }
    }
    return ids;
  }

  int id(const std::string& name) {
    const auto size = sizes_.find(name);
    if (size == sizes_.end() || size->second == Size(1)) return kNone;
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) return static_cast<int>(found - names_.begin());
    const PatternLabel& marks = marks_of(pattern_, name);
    names_.push_back(name);
    labels.push_back({name.starts_with("..") ? "d" + name.substr(2) : name,
                      size->second,
                      marks.locked || marks.composite,
                      marks.select,
                      marks.composite});
    return static_cast<int>(labels.size() - 1);
  }
  bool belongs(size_t label, const std::string& mark) const {
    return &marks_of(pattern_, names_[label]) == &marks_of(pattern_, mark);
  }

  std::vector<Label> labels;

 private:
  Names names_;  // as in the pattern, parallel to labels
  const Pattern& pattern_;
  const std::map<std::string, Size>& sizes_;
};

std::vector<std::vector<int>> present_groups(std::string_view linear,
                                             const std::vector<int>& operand) {
  std::vector<std::vector<int>> groups;
  for (const std::vector<int>& group : parse_linear(linear)) {
    std::vector<int> present;
    for (int i : group)
      if (operand.at(at(i)) != kNone) present.push_back(operand[at(i)]);
    if (!present.empty()) groups.push_back(present);
  }
  return groups;
}

}  // namespace

std::optional<Instance> instantiate(std::string_view pattern_text,
                                    std::string_view linear,
                                    const Graph& graph,
                                    const Op& op) {
  const Pattern pattern = parse_pattern(pattern_text);
  const auto operand = match_operands(pattern, op);
  if (!operand || pattern.results.size() != op.results.size()) return std::nullopt;

  std::vector<Match> matches;  // the present ones: operands, then results
  const std::vector<ValueId> values = operands(op);
  const auto add = [&](const PatternTensor& tensor, ValueId value) {
    matches.push_back({&tensor, graph.values[at(value)].type.shape, {}, {}});
  };
  for (size_t i = 0; i < operand->size(); ++i)
    if ((*operand)[i] != kNone) add(pattern.operands[i], values[at((*operand)[i])]);
  const size_t num_operands = matches.size();
  for (size_t i = 0; i < op.results.size(); ++i)
    if (op.results[i] != kNone) add(pattern.results[i], op.results[i]);

  std::map<std::string, size_t> widths;  // for the dims of ".."
  for (const Match& match : matches) {
    for (const PatternDim& each : match.pattern->dims) {
      if (each.kind != PatternDim::Kind::kDots) continue;
      if (match.shape.size() + 1 < match.pattern->dims.size()) return std::nullopt;
      size_t& widest = widths[each.labels[0]];
      widest = std::max(widest, dots_width(match));
    }
  }
  for (Match& match : matches) {
    const std::vector<PatternDim>& dims = match.pattern->dims;
    const bool is_one = dims.size() == 1 && dims[0].kind == PatternDim::Kind::kOne;
    if (match.pattern->any || (is_one && match.shape.empty())) continue;
    if (!name_dims(match, widths)) return std::nullopt;
  }
  std::map<std::string, Size> sizes;
  if (!solve_sizes(matches, sizes)) return std::nullopt;

  Instance instance;
  Labels labels(pattern, sizes);
  instance.operands.resize(values.size());
  instance.shape_only.resize(values.size());
  for (size_t i = 0, m = 0; i < operand->size(); ++i) {
    if ((*operand)[i] == kNone) continue;
    const auto at = static_cast<size_t>((*operand)[i]);
    instance.operands[at] = labels.of(matches[m++]);
    instance.shape_only[at] = pattern.operands[i].shape_only;
  }
  for (size_t i = 0, m = num_operands; i < op.results.size(); ++i) {
    if (op.results[i] == kNone) {
      instance.results.emplace_back();
    } else {
      instance.results.push_back(labels.of(matches[m++]));
    }
  }
  instance.linear = present_groups(linear, *operand);
  instance.labels = labels.labels;
  for (const PatternTensor& result : pattern.results) {
    std::vector<Absent>& absent =
        instance.absent.emplace_back(instance.labels.size(), Absent::kSum);
    for (const auto& [name, what] : result.absent) {
      for (size_t i = 0; i < instance.labels.size(); ++i)
        if (labels.belongs(i, name)) absent[i] = what;
    }
  }
  return instance;
}

}  // namespace medley
