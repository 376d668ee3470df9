#pragma once

// Finds device types by the names that users and drivers write: "T4", "3090", "rtx 4060ti 16gb",
// "NVIDIA A100-SXM4-80GB". Knows no figures.

#include <string>
#include <string_view>
#include <vector>

#include "medley/cluster/cluster.h"

namespace medley {

// Returns all types that match a name: none, one, or several that differ in a part that the name
// omits (A100: 40 or 80 GB). An omitted form factor is the one that no type's name gives: SXM if
// there are several. An exact type name matches only that type.
std::vector<std::string> kinds_meant(const Catalogue& catalogue, std::string_view name);

// Returns up to five of `known` that resemble an unmatched name, nearest first.
std::vector<std::string> near_names(const std::vector<std::string>& known, std::string_view name);

}  // namespace medley
