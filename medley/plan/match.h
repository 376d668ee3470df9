#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace medley {

// Returns whether `pattern` matches the whole `name`; "*" matches any run of characters, also "/",
// "." and the empty run.
bool matches(std::string_view pattern, std::string_view name);

// Finds the entry whose key matches a name best. A key without "*" wins; then the pattern with more
// characters besides "*", then the alphabetically later one. The order in the file is ignored.
// Built once for many names: patterns are indexed by the text after their last "/".
class ChoiceFinder {
 public:
  using Choice = std::pair<const std::string, std::string>;

  // Requires: `choices` outlives this and does not change.
  explicit ChoiceFinder(const std::map<std::string, std::string>& choices);
  // Returns the entry, or null.
  const Choice* find_entry(std::string_view name) const;
  // Returns its value, or null.
  const std::string* find(std::string_view name) const;

 private:
  const std::map<std::string, std::string>& choices_;
  // By the text after the last "/", best first. Key "*": patterns whose last part has a "*".
  std::map<std::string, std::vector<std::pair<size_t, const Choice*>>, std::less<>> patterns_;
};

}  // namespace medley
