#pragma once

// Strings between double quotes, as the text form of a graph writes them: \" \\ \n, other control
// characters as \x1f, every other byte as it is.

#include <optional>
#include <string>
#include <string_view>

namespace medley {

void append_quoted(std::string& out, std::string_view text);
// Reads a quoted string at the start of `text` and moves `text` behind it. Returns nothing, and
// leaves `text` alone, when there is none.
std::optional<std::string> read_quoted(std::string_view& text);

}  // namespace medley
