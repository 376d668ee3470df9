#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace medley {

// Returns `, such as "<name>"` with the name nearest to `found`, for the end of an error message;
// "" without names. The earlier name wins a tie.
std::string suggestion(std::string_view found, const std::vector<std::string>& names);

}  // namespace medley
