#pragma once

// A text as a JSON value, for own JSON printers. Knows nothing of the content.

#include <string>

namespace medley {

// Returns the text with quotes. Replaces invalid UTF-8.
std::string json_string(const std::string& text);

}  // namespace medley
