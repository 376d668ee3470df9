#include "medley/plan/match.h"

#include <algorithm>

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

namespace {

const std::pair<const std::string, std::string>* find_best(
    const std::map<std::string, std::string>& choices, std::string_view name) {
  if (auto exact = choices.find(std::string(name)); exact != choices.end()) return &*exact;
  const std::pair<const std::string, std::string>* best = nullptr;
  std::ptrdiff_t best_length = -1;
  for (const auto& choice : choices) {
    const std::string& pattern = choice.first;
    const auto length =
        std::count_if(pattern.begin(), pattern.end(), [](char c) { return c != '*'; });
    if (length >= best_length && matches(pattern, name)) {
      best = &choice;
      best_length = length;
    }
  }
  return best;
}

}  // namespace

const std::string* find_choice(const std::map<std::string, std::string>& choices,
                               std::string_view name) {
  const auto* best = find_best(choices, name);
  return best ? &best->second : nullptr;
}

const std::string* find_key(const std::map<std::string, std::string>& choices,
                            std::string_view name) {
  const auto* best = find_best(choices, name);
  return best ? &best->first : nullptr;
}

}  // namespace medley
