#pragma once

// Kinds of devices by the names that people and drivers write: "T4", "3090", "rtx 4060ti 16gb",
// "NVIDIA A100-SXM4-80GB". Knows no figures.

#include <string>
#include <string_view>
#include <vector>

#include "medley/cluster/cluster.h"

namespace medley {

// The kinds that a name may mean: none, one, or several that differ in what the name leaves open
// (A100: 40 or 80 GB). A form factor that the name leaves open is the one that no kind's name says:
// SXM where there are several. The exact name of a kind means that kind.
std::vector<std::string> kinds_meant(const Catalogue& catalogue, std::string_view name);

// Up to five of `known` that look like a name that means none of them, the nearest first.
std::vector<std::string> near_names(const std::vector<std::string>& known, std::string_view name);

}  // namespace medley
