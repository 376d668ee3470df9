#pragma once

// The name of a set of devices in a generation. Knows nothing of process groups.

#include <string>
#include <vector>

namespace medley {

// Returns "medley/<generation>/0,2,3" for the devices in any order.
std::string group_name(std::vector<int> devices, int generation);

}  // namespace medley
