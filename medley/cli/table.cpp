#include "medley/cli/table.h"

#include <algorithm>

namespace medley {
namespace {

bool is_number(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.,-+ %") == std::string::npos;
}

}  // namespace

std::string Table::text() const {
  std::vector<size_t> widths;
  std::vector<bool> numbers;
  for (size_t r = 0; r < rows_.size(); ++r)
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      if (c == widths.size()) {
        widths.push_back(0);
        numbers.push_back(true);
      }
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !is_number(rows_[r][c])) numbers[c] = false;
    }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += (c > 0 ? "  " : "") + (numbers[c] ? padding + row[c] : row[c] + padding);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace medley
