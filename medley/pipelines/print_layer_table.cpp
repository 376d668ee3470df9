#include <fmt/format.h>

#include "medley/base/json_string.h"
#include "medley/base/sha256.h"
#include "medley/pipelines/layer_table.h"

namespace medley {
namespace {

// `each` prints what stands behind a name.
template <typename Map, typename Each>
std::string object(const Map& map, const Each& each) {
  std::string out;
  for (const auto& [name, value] : map)
    out += fmt::format("{}\n      {}: {}", out.empty() ? "" : ",", json_string(name), each(value));
  return "{" + out + "}";
}

std::string to_json(const LayerBytes& bytes) {
  return fmt::format("{{\"parameters\": {}, \"saved\": {}, \"output\": {}{}}}",
                     bytes.parameters.value,
                     bytes.saved.value,
                     bytes.output.value,
                     bytes.tied.value > 0 ? fmt::format(", \"tied\": {}", bytes.tied.value) : "");
}

std::string to_json(const LayerTimes& times) {
  return fmt::format("[{}, {}, {}]", times.forward.value, times.backward.value, times.update.value);
}

std::string to_json(const RunConstants& run) {
  return fmt::format("{{\"state\": {}, \"saved\": {}, {}\"all_reduce\": {}, \"blocking\": {}}}",
                     run.state,
                     run.saved,
                     run.fixed ? fmt::format("\"fixed_bytes\": {}, ", run.fixed->value) : "",
                     run.all_reduce,
                     run.blocking);
}

}  // namespace

std::string print(const LayerTable& table) {
  std::string out = fmt::format(
      "{{\n  \"format\": \"medley-layers\",\n  \"version\": 1,\n  \"model\": {},\n  \"source\": "
      "{},\n  \"layers\": [",
      json_string(table.model),
      json_string(table.source));
  for (size_t i = 0; i < table.layers.size(); ++i)
    out += (i > 0 ? ", " : "") + json_string(table.layers[i]);
  out += fmt::format("],\n  \"run\": {},\n  \"bytes\": [", to_json(table.run));
  for (size_t i = 0; i < table.bytes.size(); ++i)
    out += fmt::format("{}\n    {{\"tensor_parallel\": {}, \"layers\": {}}}",
                       i > 0 ? "," : "",
                       table.bytes[i].tensor_parallel,
                       object(table.bytes[i].kinds, [](const auto& b) { return to_json(b); }));
  out += "\n  ],\n  \"times\": [";
  for (size_t i = 0; i < table.times.size(); ++i)
    out +=
        fmt::format("{}\n    {{\"device\": {}, \"tensor_parallel\": {}, \"rows\": {}, \"ns\": {}}}",
                    i > 0 ? "," : "",
                    json_string(table.times[i].device),
                    table.times[i].tensor_parallel,
                    table.times[i].rows,
                    object(table.times[i].kinds, [](const auto& t) { return to_json(t); }));
  return out + "\n  ]\n}\n";
}

std::string hash(const LayerTable& table) { return sha256_hex(print(table)); }

}  // namespace medley
