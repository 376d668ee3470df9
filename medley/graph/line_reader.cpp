#include "medley/graph/line_reader.h"

#include <fmt/format.h>

#include <charconv>

#include "medley/base/error.h"
#include "medley/graph/quote.h"

namespace medley {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '.' ||
         c == '+' || c == '-';
}

template <typename Number>
bool read_number(std::string_view word, Number& value) {
  const char* last = word.data() + word.size();
  const auto [end, error] = std::from_chars(word.data(), last, value);
  return error == std::errc() && end == last && !word.empty();
}

}  // namespace

void LineReader::fail(std::string_view expected) { fail(found(), expected); }

void LineReader::fail(std::string_view found, std::string_view expected) const {
  throw Error(Blame::kCaller,
              fmt::format("{}:{}: found {}, expected {}", file_, line_, found, expected));
}

void LineReader::skip_spaces() {
  const size_t start = rest_.find_first_not_of(' ');
  rest_.remove_prefix(start == std::string_view::npos ? rest_.size() : start);
}

char LineReader::peek() {
  skip_spaces();
  return rest_.empty() ? '\0' : rest_[0];
}

bool LineReader::accept(char c) {
  skip_spaces();
  if (rest_.empty() || rest_[0] != c) return false;
  rest_.remove_prefix(1);
  return true;
}

void LineReader::expect(char c) {
  if (!accept(c)) fail(fmt::format("'{}'", c));
}

void LineReader::expect_end() {
  skip_spaces();
  if (!rest_.empty()) fail("the end of the line");
}

std::string_view LineReader::peek_word() {
  skip_spaces();
  size_t length = 0;
  while (length < rest_.size() && is_word(rest_[length])) ++length;
  return rest_.substr(0, length);
}

std::string_view LineReader::word() {
  const std::string_view result = peek_word();
  rest_.remove_prefix(result.size());
  return result;
}

void LineReader::expect_word(std::string_view word) {
  if (peek_word() != word) fail(fmt::format("'{}'", word));
  rest_.remove_prefix(word.size());
}

std::string LineReader::quoted(std::string_view what) {
  skip_spaces();
  auto text = read_quoted(rest_);
  if (!text) fail(what);
  return *std::move(text);
}

int64_t LineReader::index(int64_t limit, std::string_view what) {
  size_t length = 0;
  while (length < rest_.size() && is_digit(rest_[length])) ++length;
  const std::string_view digits = rest_.substr(0, length);
  int64_t value = 0;
  if (!read_integer(digits, value)) fail(what);
  if (value >= limit) fail(fmt::format("{} below {}", what, limit));
  rest_.remove_prefix(length);
  return value;
}

std::string LineReader::found() {
  constexpr size_t kShown = 40;
  skip_spaces();
  if (rest_.empty()) return "the end of the line";
  std::string_view token = peek_word();
  if (token.empty()) token = rest_.substr(0, rest_[0] == '"' ? rest_.size() : 1);
  std::string shown;
  append_quoted(shown, token.substr(0, kShown));
  if (token.size() > kShown) shown += "...";
  if (rest_[0] == '"') return shown;
  return fmt::format("'{}'", std::string_view(shown).substr(1, shown.size() - 2));
}

bool read_integer(std::string_view word, int64_t& value) {
  const std::string_view digits = word.starts_with('-') ? word.substr(1) : word;
  const bool canonical = digits == word ? digits == "0" || !digits.starts_with('0')
                                        : !digits.starts_with('0');  // neither "007" nor "-0"
  return canonical && read_number(word, value);
}

bool read_float(std::string_view word, double& value) {
  const std::string_view digits = word.starts_with('-') ? word.substr(1) : word;
  if (digits.empty() || (!is_digit(digits[0]) && word != "inf" && word != "-inf" && word != "nan"))
    return false;
  return read_number(word, value);
}

}  // namespace medley
