#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace medley {

// Returns `, such as "<name>"` with the name that differs least from `found`, for the end of an
// error message; "" if there are no names. The earlier name wins a tie.
std::string suggestion(std::string_view found, const std::vector<std::string>& names);

}  // namespace medley
