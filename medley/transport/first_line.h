#pragma once

// Returns the text of PyTorch's errors without their stack trace.

#include <exception>
#include <string>

namespace medley {

inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace medley
