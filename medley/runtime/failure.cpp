#include "medley/runtime/failure.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace medley {

using nlohmann::json;

NLOHMANN_JSON_SERIALIZE_ENUM(Blame,
                             {{Blame::kEnvironment, "environment"},
                              {Blame::kCaller, "caller"},
                              {Blame::kUs, "medley"}})

std::string to_json(const Failure& failure) {
  return json{{"generation", failure.generation},
              {"device", failure.device ? json(*failure.device) : json()},
              {"call", failure.call},
              {"edge", failure.edge},
              {"cause", failure.cause},
              {"blame", failure.blame}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string to_job_json(const Failure& failure,
                        const std::string& device,
                        const std::string& told_by,
                        const std::string& sentence) {
  return json{{"device", device},
              {"told_by", told_by},
              {"in_exchange", !failure.edge.empty()},
              {"blame", failure.blame},
              {"cause", sentence}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Failure parse_failure(const std::string& text, const std::string& place) {
  try {
    const json value = json::parse(text);
    const json& device = value.at("device");
    return {value.at("generation"),
            device.is_null() ? std::nullopt : std::optional<int>(device.get<int>()),
            value.at("call"),
            value.at("edge"),
            value.at("cause"),
            value.at("blame")};
  } catch (const json::exception&) {
    throw Error(Blame::kEnvironment,
                fmt::format("store: {}: found {:?}, expected what a device of the run writes: "
                            "somebody else writes to the store",
                            place,
                            text.substr(0, 60)));
  }
}

}  // namespace medley
