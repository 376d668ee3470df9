#pragma once

// A text as a JSON value, for those who print JSON in a form of their own. Knows nothing of what is
// printed.

#include <string>

namespace medley {

// With its quotes. Bytes that are no UTF-8 are replaced.
std::string json_string(const std::string& text);

}  // namespace medley
