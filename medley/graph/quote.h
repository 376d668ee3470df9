#pragma once

// Writes strings in double quotes for the text form of a graph: \" \\ \n, other control characters
// as \x1f, every other byte unchanged.

#include <optional>
#include <string>
#include <string_view>

namespace medley {

void append_quoted(std::string& out, std::string_view text);
// Reads a quoted string at the start of `text` and advances `text` past it. Without one, returns
// nullopt and leaves `text` unchanged.
std::optional<std::string> read_quoted(std::string_view& text);

}  // namespace medley
