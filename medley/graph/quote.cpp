#include "medley/graph/quote.h"

#include <charconv>

namespace medley {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

// Reads an escape after the backslash.
std::optional<char> read_escape(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  const char c = text[0];
  if (c == '"' || c == '\\' || c == 'n') {
    text.remove_prefix(1);
    return c == 'n' ? '\n' : c;
  }
  if (c != 'x' || text.size() < 3) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + 3, value, 16);
  if (error != std::errc() || end != text.data() + 3) return std::nullopt;
  text.remove_prefix(3);
  return static_cast<char>(value);
}

}  // namespace

void append_quoted(std::string& out, std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (is_control(c)) {
      out += "\\x";
      out += kDigits[c >> 4];
      out += kDigits[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

std::optional<std::string> read_quoted(std::string_view& text) {
  if (text.empty() || text[0] != '"') return std::nullopt;
  std::string_view rest = text.substr(1);
  std::string result;
  while (!rest.empty()) {
    const char c = rest[0];
    if (is_control(c)) return std::nullopt;
    rest.remove_prefix(1);
    if (c == '"') {
      text = rest;
      return result;
    }
    if (c != '\\') {
      result += c;
      continue;
    }
    const std::optional<char> escaped = read_escape(rest);
    if (!escaped) return std::nullopt;
    result += *escaped;
  }
  return std::nullopt;
}

}  // namespace medley
