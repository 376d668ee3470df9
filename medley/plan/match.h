#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace medley {

// Whether `pattern` describes the whole of `name`; "*" stands for any run of characters, "/" and
// "." included, and for none.
bool matches(std::string_view pattern, std::string_view name);

// Finds the entry whose key describes a name best. A key without "*" beats one with; of two
// patterns the one with more characters beside "*" wins; of two equally long ones the later in the
// alphabet. The order in the file plays no part. Made once for many names: patterns are told apart
// by what follows their last "/" before any of them is tried.
class ChoiceFinder {
 public:
  using Choice = std::pair<const std::string, std::string>;

  // Requires: `choices` outlives this and does not change.
  explicit ChoiceFinder(const std::map<std::string, std::string>& choices);
  // The entry, or null.
  const Choice* find_entry(std::string_view name) const;
  // Its value, or null.
  const std::string* find(std::string_view name) const;

 private:
  const std::map<std::string, std::string>& choices_;
  // Best first. By the text behind the last "/"; "*": those where that is no plain text.
  std::map<std::string, std::vector<std::pair<size_t, const Choice*>>, std::less<>> patterns_;
};

}  // namespace medley
