#include "medley/runtime/failure.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "medley/base/error.h"

namespace medley {

using nlohmann::json;

std::string to_json(const Failure& failure) {
  return json{{"epoch", failure.epoch},
              {"device", failure.device},
              {"call", failure.call},
              {"edge", failure.edge},
              {"cause", failure.cause}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Failure parse_failure(const std::string& text, const std::string& place) {
  try {
    const json value = json::parse(text);
    return {value.at("epoch"),
            value.at("device"),
            value.at("call"),
            value.at("edge"),
            value.at("cause")};
  } catch (const json::exception&) {
    throw Error(Blame::kEnvironment,
                fmt::format("store: {}: found {:?}, expected what a device of the run writes: "
                            "somebody else writes to the store",
                            place,
                            text.substr(0, 60)));
  }
}

}  // namespace medley
