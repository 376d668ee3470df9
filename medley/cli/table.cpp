#include "medley/cli/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace medley {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kShortCell = 16;  // is not broken: "12.3 ms 45.6 %"
constexpr size_t kLongWord = 24;   // may be broken within: "encoder.layers.*.mlp/mm#0"

using Lines = std::vector<std::string>;

bool is_number(const std::string& cell) {
  return cell.find_first_not_of("0123456789.,-+ %") == std::string::npos;
}

bool is_zero(const std::string& cell) {
  return cell.empty() || cell == "0 B" || cell == "0 s" || cell == "0 %" || cell == "0.0 %";
}

// Returns the least width of a cell, or of a title if `most` is 0.
size_t least_width(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  size_t longest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    longest = std::max(longest, std::min(end - begin, kLongWord));
    begin = end + 1;
  }
  return std::max(longest, most);
}

size_t sum(const std::vector<size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
}

// Narrows the widest column as long as the table is too wide and it is wider than `least`.
void narrow(std::vector<size_t>& widths, const std::vector<size_t>& least) {
  while (sum(widths) > kColumns) {
    size_t widest = widths.size();
    for (size_t c = 0; c < widths.size(); ++c)
      if (widths[c] > least[c] && (widest == widths.size() || widths[c] > widths[widest]))
        widest = c;
    if (widest == widths.size()) return;
    --widths[widest];
  }
}

struct Column {
  std::vector<std::string> cells;  // the title, then one for each row
  bool numbers = true, empty = true;
  size_t natural = 0, least = 0;  // widths

  void add(const std::string& cell) {
    const bool title = cells.empty();
    natural = std::max(natural, cell.size());
    least = std::max(least, least_width(cell, title ? 0 : kShortCell));
    if (!title) numbers = numbers && is_number(cell), empty = empty && is_zero(cell);
    cells.push_back(cell);
  }
};

std::string block_text(const std::vector<Column>& columns, const std::vector<size_t>& widths) {
  std::string out;
  for (size_t r = 0; r < columns[0].cells.size(); ++r) {
    std::vector<Lines> cells;
    size_t height = 1;
    for (size_t c = 0; c < columns.size(); ++c) {
      cells.push_back(broken(columns[c].cells[r], widths[c]));
      height = std::max(height, cells.back().size());
    }
    for (size_t l = 0; l < height; ++l) {
      std::string line;
      for (size_t c = 0; c < columns.size(); ++c) {
        // Titles end in the line above the cells.
        const size_t first = r == 0 ? height - cells[c].size() : 0;
        const std::string cell =
            l >= first && l - first < cells[c].size() ? cells[c][l - first] : "";
        const std::string padding(widths[c] - std::min(widths[c], cell.size()), ' ');
        line += (c > 0 ? std::string(kGap, ' ') : "") +
                (columns[c].numbers ? padding + cell : cell + padding);
      }
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
  }
  return out;
}

// Prints all columns or, if they have no room, as many as have room unbroken, then the rest.
std::string text_of(const std::vector<Column>& columns) {
  std::vector<size_t> widths, least;
  for (const Column& column : columns) {
    widths.push_back(column.natural);
    least.push_back(column.least);
  }
  size_t end = columns.size();
  if (sum(least) > kColumns)
    for (; end > 2 && sum(widths) > kColumns; --end) widths.pop_back();
  narrow(widths, least);
  const std::string text = block_text({columns.begin(), columns.begin() + end}, widths);
  if (end == columns.size()) return text;
  std::vector<Column> rest{columns[0]};
  rest.insert(rest.end(), columns.begin() + end, columns.end());
  return text + "\n" + text_of(rest);
}

}  // namespace

Lines broken(std::string_view text, size_t width) {
  Lines lines;
  while (text.size() > width) {
    size_t end = text.rfind(' ', width);
    if (end == std::string_view::npos || end < text.find_first_not_of(' '))
      end = text.find_last_of("./,:_-", width - 1) + 1;
    if (end == 0)
      for (end = width; end > 1 && (text[end] & 0xc0) == 0x80;) --end;  // whole UTF-8 characters
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.find_first_not_of(' ', end), text.size()));
  }
  if (!text.empty() || lines.empty()) lines.emplace_back(text);
  return lines;
}

Table::Table(std::string_view titles) {
  Lines header(1);
  for (const char c : titles) c == '|' ? void(header.emplace_back()) : header.back().push_back(c);
  rows_.push_back(std::move(header));
}

std::string Table::text() const {
  std::vector<Column> columns;
  for (size_t c = 0; c < rows_[0].size(); ++c) {
    Column column;
    for (const Lines& row : rows_) column.add(c < row.size() ? row[c] : "");
    if (c == 0 || !column.empty || empty()) columns.push_back(std::move(column));
  }
  return text_of(columns);
}

std::string wrapped(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::string indent(std::min(line.find_first_not_of(' '), line.size()) + kGap, ' ');
    out +=
        line.size() <= kColumns
            ? line
            : fmt::format("{}", fmt::join(broken(line, kColumns - indent.size()), "\n" + indent));
    if (end < text.size()) out += "\n";
    begin = end + 1;
  }
  return out;
}

std::string next_text(const std::vector<std::vector<std::string>>& commands) {
  std::string out;
  for (const std::vector<std::string>& command : commands) {
    Lines parts;  // an option with its values is one
    for (const std::string& word : command) {
      const bool plain = word.find_first_of(" \t'\"\\$*?;&|<>()`#~!") == std::string::npos;
      const std::string shown = plain ? word : fmt::format("'{}'", word);
      if (!word.starts_with("-") && !parts.empty() && parts.back().starts_with("-"))
        parts.back() += " " + shown;
      else
        parts.push_back(shown);
    }
    std::string line = out.empty() ? "Next:" : "  or:";
    for (const std::string& part : parts) {
      if (line.size() + part.size() + 3 > kColumns) out += std::exchange(line, "       ") + " \\\n";
      line += " " + part;
    }
    out += line + "\n";
  }
  return out;
}

std::string percent(double share, int digits) {
  return fmt::format("{:.{}f} %", 100 * share, digits);
}

std::string grouped(double number) {
  const int before = number > 0 ? static_cast<int>(std::floor(std::log10(number))) : 0;
  std::string text = fmt::format("{:.{}f}", number, std::clamp(2 - before, 0, 9));
  for (auto end = static_cast<int>(std::min(text.find('.'), text.size())); end > 3; end -= 3)
    text.insert(static_cast<size_t>(end - 3), ",");
  return text;
}

std::string samples_text(double samples_per_second) {
  return grouped(samples_per_second) + " samples/s";
}

}  // namespace medley
