#pragma once

// Reads the tokens of one line of a text form; spaces between tokens are ignored. Each failure is
// an Error(kCaller) "<file>:<line>: found <token>, expected <what>". Knows nothing of graphs.

#include <cstdint>
#include <string>
#include <string_view>

namespace medley {

class LineReader {
 public:
  LineReader(std::string_view file, int64_t line, std::string_view rest)
      : file_(file), line_(line), rest_(rest) {}

  [[noreturn]] void fail(std::string_view expected);
  [[noreturn]] void fail(std::string_view found, std::string_view expected) const;

  // Returns the first character of the next token, or '\0' at the end of the line.
  char peek();
  bool accept(char c);
  void expect(char c);
  void expect_end();
  // Return a run of letters, digits and "_.+-", maybe empty. peek_word() does not consume it.
  std::string_view peek_word();
  std::string_view word();
  void expect_word(std::string_view word);
  std::string quoted(std::string_view what);
  // Returns a number without sign and leading zeros, below `limit`, directly after the last token.
  int64_t index(int64_t limit, std::string_view what);

 private:
  void skip_spaces();
  std::string found();

  std::string_view file_;
  int64_t line_;
  std::string_view rest_;
};

// Read all of `word` as a number; return false if it is none or does not fit.
bool read_integer(std::string_view word, int64_t& value);
bool read_float(std::string_view word, double& value);

}  // namespace medley
