#pragma once

// Text for the console: tables and lines of at most kColumns, numbers, and the next commands.

#include <string>
#include <string_view>
#include <vector>

namespace medley {

constexpr size_t kColumns = 100;

// Columns of text: two blanks between them, numbers right-aligned. A column without any cell but
// "" and zeros with a unit, such as "0 B", is hidden. A table that is too wide breaks its titles,
// then its cells, between words. If that does not suffice, its last columns follow in a further
// table, which repeats the first column.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) : rows_{std::move(titles)} {}
  // Takes the titles from one text, "device|memory".
  explicit Table(std::string_view titles);
  // Adds a row, possibly shorter than the header.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Breaks a text between words, or within a word that is longer than `width`.
std::vector<std::string> broken(std::string_view text, size_t width);

// Returns the text with its wide lines broken between words. Further lines are indented.
std::string wrapped(const std::string& text);

// Returns "Next: medley ...": a verb's last lines, one command of a shell in each.
std::string next_text(const std::vector<std::vector<std::string>>& commands);

std::string percent(double share, int digits = 1);    // "9.8 %"
std::string grouped(double number);                   // "18,331" or, with three digits, "0.250"
std::string samples_text(double samples_per_second);  // "18,331 samples/s"

}  // namespace medley
