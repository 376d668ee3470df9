#include "medley/plan/match.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {

bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, resume = 0;  // the last "*" and where its run ends so far
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ChoiceFinder::ChoiceFinder(const std::map<std::string, std::string>& choices) : choices_(choices) {
  // Later names first, so a stable sort keeps them first among equally long ones.
  for (auto choice = choices.rbegin(); choice != choices.rend(); ++choice) {
    const std::string& pattern = choice->first;
    const size_t star = pattern.rfind('*'), slash = pattern.rfind('/');
    if (star == std::string::npos) continue;
    const bool plain = slash != std::string::npos && slash > star;
    const auto length =
        at(std::count_if(pattern.begin(), pattern.end(), [](char c) { return c != '*'; }));
    patterns_[plain ? pattern.substr(slash + 1) : "*"].emplace_back(length, &*choice);
  }
  for (auto& [suffix, all] : patterns_)
    std::stable_sort(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
}

const ChoiceFinder::Choice* ChoiceFinder::find_entry(std::string_view name) const {
  if (auto exact = choices_.find(std::string(name)); exact != choices_.end()) return &*exact;
  const size_t slash = name.rfind('/');
  const std::pair<size_t, const Choice*>* best = nullptr;
  for (const std::string_view key :
       {slash == std::string_view::npos ? std::string_view() : name.substr(slash + 1),
        std::string_view("*")}) {
    const auto bucket = patterns_.find(key);
    if (bucket == patterns_.end()) continue;
    for (const auto& each : bucket->second) {
      if (best && each.first < best->first) break;
      if (!matches(each.second->first, name)) continue;
      if (!best || each.first > best->first || each.second->first > best->second->first)
        best = &each;
      break;
    }
  }
  return best ? best->second : nullptr;
}

const std::string* ChoiceFinder::find(std::string_view name) const {
  const Choice* entry = find_entry(name);
  return entry ? &entry->second : nullptr;
}

}  // namespace medley
