#pragma once

#include <map>
#include <string>
#include <string_view>

namespace medley {

// Whether `pattern` describes the whole of `name`; "*" stands for any run of characters, "/" and
// "." included, and for none.
bool matches(std::string_view pattern, std::string_view name);

// Returns the value whose key describes `name` best, or null. A key without "*" beats one with; of
// two patterns the one with more characters beside "*" wins; of two equally long ones the later in
// the alphabet. The order in the file plays no part.
const std::string* find_choice(const std::map<std::string, std::string>& choices,
                               std::string_view name);

// The same, but returns the key.
const std::string* find_key(const std::map<std::string, std::string>& choices,
                            std::string_view name);

}  // namespace medley
