#include "medley/synthesis/shorten.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>

#include "medley/plan/match.h"
#include "medley/plan/texts.h"

namespace medley {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Replaces each path component that is a number ("0" of "h.0.mlp") by "*".
std::string pattern_of(const std::string& name) {
  const size_t path = std::min(name.rfind('/'), name.size());
  std::string pattern;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    const bool starts = i == 0 || name[i - 1] == '.' || name[i - 1] == '/';
    const bool ends = end == name.size() || name[end] == '.' || name[end] == '/';
    if (end > i && starts && ends && (i < path || path == name.size())) {
      pattern += '*';
      i = end;
    } else {
      end = std::max(end, i + 1);
      pattern.append(name, i, end - i);
      i = end;
    }
  }
  return pattern;
}

// A "*" matches more than one number: drops patterns that match a name without an entry.
void drop_matching(Choices& patterns, const Choices& exact, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (!exact.contains(name))
      std::erase_if(patterns, [&](const auto& each) { return matches(each.first, name); });
}

Choices shortened(const Choices& exact, const std::vector<std::string>& names) {
  std::set<std::string> omitted;  // patterns of names without an entry
  for (const std::string& name : names)
    if (!exact.contains(name)) omitted.insert(pattern_of(name));
  std::map<std::string, std::map<std::string, int>> votes;  // pattern -> text -> count
  for (const auto& [name, text] : exact) ++votes[pattern_of(name)][text];
  Choices result;
  for (const auto& [pattern, texts] : votes) {
    if (omitted.contains(pattern)) continue;
    const auto most =
        std::max_element(texts.begin(), texts.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        });
    result[pattern] = most->first;
  }
  drop_matching(result, exact, names);
  Choices exceptions;
  const ChoiceFinder finder(result);
  for (const auto& [name, text] : exact)
    if (const std::string* found = finder.find(name); !found || *found != text)
      exceptions[name] = text;
  result.insert(exceptions.begin(), exceptions.end());
  return result;
}

template <typename Text>
void add_parts(const std::optional<std::vector<Text>>& axes, std::set<std::string>& names) {
  for (const Text& axis : axes.value_or(std::vector<Text>{})) names.insert(axis.part);
}

}  // namespace

void shorten(Stage& stage, const std::vector<std::string>& op_names) {
  stage.ops = shortened(stage.ops, op_names);
  for (Choices* choices : {&stage.placements, &stage.batch, &stage.updates})
    *choices = shortened(*choices, {});
}

void drop_unused_parts(Plan& plan) {
  Pipeline& pipeline = only_pipeline(plan);
  const Stage& stage = pipeline.stages[0];
  std::set<std::string> used;
  for (const auto& [name, text] : stage.ops) add_parts(parse_choice_text(text), used);
  for (const Choices* choices : {&stage.placements, &stage.batch, &stage.updates})
    for (const auto& [name, text] : *choices) add_parts(parse_placement_text(text), used);
  std::erase_if(plan.parts, [&](const Part& part) { return !used.contains(part.name); });
  if (!stage.batch.empty() && !used.contains(std::string(kRows)))
    for (Microbatch& microbatch : pipeline.microbatches) microbatch.lengths.clear();
}

}  // namespace medley
