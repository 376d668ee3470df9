#include "medley/plan/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace medley {
namespace {

// Returns the Levenshtein distance, the number of edits that turn `a` into `b`.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(std::string_view found, const std::vector<std::string>& names) {
  size_t least = std::numeric_limits<size_t>::max();
  const std::string* nearest = nullptr;
  for (const std::string& name : names) {
    const size_t distance = edits(found.substr(0, 200), std::string_view(name).substr(0, 200));
    if (distance < least) {
      least = distance;
      nearest = &name;
    }
  }
  return nearest ? fmt::format(", such as \"{}\"", *nearest) : "";
}

}  // namespace medley
