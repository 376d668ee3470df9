#pragma once

// The common part of the targets. A target reads any bytes as one kind of file. It may refuse them
// as the caller's mistake. Any other exception, and any violated property, is a finding.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "medley/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace medley {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Returns false if the caller is blamed.
template <typename Body>
bool accepts(Body&& body) {
  try {
    std::forward<Body>(body)();
    return true;
  } catch (const Error& error) {
    if (error.blame() != Blame::kCaller) throw;
    return false;
  }
}

// Ends the program, which makes the input a finding.
inline void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

inline void require_equal(const std::string& found,
                          const std::string& expected,
                          std::string_view what) {
  if (found == expected) return;
  std::fprintf(stderr, "found:\n%s\nexpected:\n%s\n", found.c_str(), expected.c_str());
  require(false, what);
}

// Returns the file `name`, relative to the root of the repository.
inline std::string read_sample(const std::string& name) {
  std::ifstream in(std::string(MEDLEY_ROOT "/") + name);
  std::ostringstream text;
  text << in.rdbuf();
  require(in.good(), name);
  return text.str();
}

}  // namespace medley
