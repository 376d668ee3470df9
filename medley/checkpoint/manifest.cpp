#include "medley/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/base/json_string.h"
#include "medley/graph/graph.h"

namespace medley {
namespace {

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) fmt::format_to(std::back_inserter(text), ",{}", number);
  return "[" + (text.empty() ? text : text.substr(1)) + "]";
}

std::string print_fact(const Fact& fact) {
  return std::visit([](const auto& value) { return nlohmann::json(value).dump(); }, fact);
}

template <typename Map, typename Print>
std::string print_map(const Map& map, Print print_one) {
  std::string text;
  for (const auto& [key, value] : map)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", json_string(key), print_one(value));
  return "{" + text + "}";
}

std::string print_state(const TrainingState& state) {
  std::string text = fmt::format("  \"step\": {},\n  \"global_batch\": {},\n  \"seed\": {},\n",
                                 state.step,
                                 state.global_batch,
                                 state.seed);
  if (state.data)
    text += fmt::format("  \"data\": {{\"epoch\": {}, \"batch\": {}, \"seed\": {}}},\n",
                        state.data->epoch,
                        state.data->batch,
                        state.data->seed);
  text += fmt::format("  \"optimizer\": {},\n", print_map(state.optimizer, print_fact));
  for (const auto& [key, value] : {std::pair("schedule", &state.schedule),
                                   std::pair("graph", &state.graph),
                                   std::pair("plan", &state.plan),
                                   std::pair("cluster", &state.cluster)})
    text += fmt::format("  \"{}\": {},\n", key, json_string(*value));
  return text + fmt::format("  \"versions\": {},\n", print_map(state.versions, json_string));
}

// Prints the file, then start and size in each factor.
void print_box(const StoredValue& value, size_t box, std::string& text) {
  fmt::format_to(std::back_inserter(text), "{}[{}", box == 0 ? "" : ",", value.files[box]);
  for (const IndexInterval& each : value.boxes[box])
    fmt::format_to(std::back_inserter(text), ",{},{}", each.begin, each.size());
  text += "]";
}

}  // namespace

std::string tensor_name(const StoredValue& value, size_t box) {
  return value.boxes.size() == 1 ? value.name : fmt::format("{}@{}", value.name, box);
}

std::string stored_name(const std::string& kind,
                        const std::string& name,
                        const std::string& prefix) {
  return kind == "state" && role_of_state(name).kind != StateRole::Kind::kMaster ? prefix + name
                                                                                 : name;
}

Manifest part_of(const Manifest& manifest,
                 const std::set<std::pair<std::string, std::string>>& among,
                 const std::string& prefix) {
  Manifest part{manifest.state, manifest.files, {}};
  for (const StoredValue& value : manifest.values) {
    const bool is_own = value.kind == "state" && value.name.starts_with(prefix);
    if (!is_own && !among.contains({value.kind, value.name})) continue;
    part.values.push_back(value);
    if (is_own) part.values.back().name.erase(0, prefix.size());
  }
  return part;
}

std::string print(const Manifest& manifest) {
  std::string text = "{\n  \"format\": \"medley-checkpoint\",\n  \"version\": 1,\n";
  text += print_state(manifest.state) + "  \"files\": [";
  for (const char* between = "\n"; const StoredFile& file : manifest.files) {
    text += fmt::format("{}    {{\"name\": {}, \"bytes\": {}, \"header_sha256\": {}}}",
                        between,
                        json_string(file.name),
                        file.bytes,
                        json_string(file.header_sha256));
    between = ",\n";
  }
  text += "\n  ],\n  \"values\": [";
  for (const char* between = "\n"; const StoredValue& value : manifest.values) {
    text += fmt::format(
        "{}    {{\"kind\": {}, \"name\": {}, \"dtype\": \"{}\", \"shape\": {}, \"factors\": {}, "
        "\"boxes\": [",
        between,
        json_string(value.kind),
        json_string(value.name),
        to_string(value.dtype),
        joined(value.shape),
        joined(value.factors));
    for (size_t box = 0; box < value.boxes.size(); ++box) print_box(value, box, text);
    text += "]}";
    between = ",\n";
  }
  return text + "\n  ]\n}\n";
}

void verify(const Manifest& manifest, const std::string& file) {
  for (const StoredValue& value : manifest.values) {
    const std::string place = fmt::format("{}: {} \"{}\"", file, value.kind, value.name);
    verify(Layout{value.factors, value.boxes, {}, {}}, place);
    int64_t elements = 0;
    for (const Box& box : value.boxes) elements += volume(box);
    if (elements != product_of(value.factors))
      throw Error(Blame::kCaller,
                  fmt::format("{}: found {} elements in its boxes, expected {}",
                              place,
                              elements,
                              product_of(value.factors)));
  }
}

}  // namespace medley
