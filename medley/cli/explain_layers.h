#pragma once

// The layers of a graph on one page: repeated blocks once, with their count.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "medley/graph/graph.h"

namespace medley {

nlohmann::ordered_json layers_json(const Graph& graph);
std::string layers_text(const nlohmann::ordered_json& layers);

}  // namespace medley
