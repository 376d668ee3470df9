#include "medley/base/json_string.h"

#include <nlohmann/json.hpp>

namespace medley {

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(
      -1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace medley
