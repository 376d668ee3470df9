#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/cluster/cluster.h"
#include "medley/cluster/quantity.h"

namespace medley {
namespace {

using Json = nlohmann::json;

constexpr const char* kKeys[] = {"format",
                                 "version",
                                 "name",
                                 "peak",
                                 "sustained",
                                 "memory",
                                 "memory_bandwidth",
                                 "link",
                                 "launch_latency",
                                 "bf16_as",
                                 "workspace"};

[[noreturn]] void fail(std::string_view file, std::string_view place, std::string_view what) {
  throw Error(Blame::kCaller,
              fmt::format("{}: {}{}{}", file, place, place.empty() ? "" : ": ", what));
}

std::string text_at(const Json& json,
                    std::string_view key,
                    std::string_view place,
                    std::string_view file) {
  const auto found = json.find(key);
  const std::string where = place.empty() ? std::string(key) : fmt::format("{}.{}", place, key);
  if (found == json.end()) fail(file, where, "is missing");
  if (!found->is_string() || found->get_ref<const std::string&>().empty())
    fail(file, where, "expected a text");
  return found->get<std::string>();
}

// Reads {"value": "312 Tflop/s", "source": "..."}: each number needs its source.
double parse_number(const Json& json,
                    Dimension dimension,
                    const std::string& place,
                    std::string_view file) {
  if (!json.is_object()) fail(file, place, R"(expected {"value": ..., "source": ...})");
  for (const auto& [key, value] : json.items())
    if (key != "value" && key != "source") fail(file, place, fmt::format("unknown key: {}", key));
  text_at(json, "source", place, file);
  const std::string text = text_at(json, "value", place, file);
  const auto value = parse_quantity(text, dimension);
  if (!value)
    fail(
        file, place + ".value", fmt::format("expected {}: {}", expected_quantity(dimension), text));
  if (*value <= 0) fail(file, place + ".value", fmt::format("must be positive: {}", text));
  return *value;
}

const Json& section(const Json& json, const char* key, std::string_view file) {
  const auto found = json.find(key);
  if (found == json.end()) fail(file, key, "is missing");
  return *found;
}

std::map<DType, double> parse_rates(const Json& json, const char* key, std::string_view file) {
  const Json& rates = section(json, key, file);
  if (!rates.is_object()) fail(file, key, "expected an object with a rate per dtype");
  std::map<DType, double> result;
  for (const auto& [name, rate] : rates.items()) {
    const std::string place = fmt::format("{}.{}", key, name);
    const auto dtype = parse_dtype(name);
    if (!dtype) fail(file, place, "unknown dtype, expected f64, f32, f16, bf16, ...");
    result[*dtype] = parse_number(rate, Dimension::kFlopRate, place, file);
  }
  if (!result.contains(DType::kF32)) fail(file, key, "needs a rate for f32");
  return result;
}

// Reads {"value": "f16", "source": "..."}.
DType read_bf16_as(const Json& json, std::string_view file) {
  constexpr const char* kPlace = "bf16_as";
  if (!json.is_object()) fail(file, kPlace, R"(expected {"value": ..., "source": ...})");
  for (const auto& [key, value] : json.items())
    if (key != "value" && key != "source") fail(file, kPlace, fmt::format("unknown key: {}", key));
  text_at(json, "source", kPlace, file);
  const std::string text = text_at(json, "value", kPlace, file);
  const auto dtype = parse_bf16_as(text);
  if (!dtype) fail(file, "bf16_as.value", fmt::format("expected bf16, f16 or f32: {}", text));
  return *dtype;
}

}  // namespace

DeviceKind parse_device_kind(std::string_view text, std::string_view file) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<ptrdiff_t>(std::min(error.byte, text.size()));
    throw Error(Blame::kCaller,
                fmt::format("{}:{}: not JSON", file, 1 + std::count(text.begin(), end, '\n')));
  }
  if (!json.is_object()) fail(file, "", "expected an object");
  for (const auto& [key, value] : json.items())
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys))
      fail(file, key, "unknown key");
  if (text_at(json, "format", "", file) != "medley-device")
    fail(file, "format", "expected medley-device");
  if (section(json, "version", file) != 1) fail(file, "version", "expected 1");

  DeviceKind kind;
  kind.name = text_at(json, "name", "", file);
  kind.base = kind.name;
  kind.peak = parse_rates(json, "peak", file);
  kind.sustained = parse_rates(json, "sustained", file);
  for (const auto& [dtype, rate] : kind.sustained) {
    const std::string place = fmt::format("sustained.{}", to_string(dtype));
    if (!kind.peak.contains(dtype)) fail(file, place, "has no peak");
    if (rate > kind.peak[dtype]) fail(file, place, "is above the peak");
  }
  kind.memory_bytes =
      parse_number(section(json, "memory", file), Dimension::kMemory, "memory", file);
  kind.memory_bandwidth = parse_number(
      section(json, "memory_bandwidth", file), Dimension::kBandwidth, "memory_bandwidth", file);
  kind.launch_latency = parse_number(
      section(json, "launch_latency", file), Dimension::kDuration, "launch_latency", file);
  if (const auto link = json.find("link"); link != json.end())
    kind.link = parse_number(*link, Dimension::kBandwidth, "link", file);
  if (const auto as = json.find("bf16_as"); as != json.end())
    kind.bf16_as = read_bf16_as(*as, file);
  if (const auto kept = json.find("workspace"); kept != json.end())
    kind.workspace_bytes = parse_number(*kept, Dimension::kMemory, "workspace", file);
  return kind;
}

Catalogue read_catalogue(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  if (error)
    throw Error(
        Blame::kCaller,
        fmt::format(
            "cannot read the device catalogue: {}: {}", error.message(), directory.string()));
  std::sort(files.begin(), files.end());
  Catalogue catalogue;
  for (const auto& file : files) {
    DeviceKind kind = parse_device_kind(LocalFiles().read(file.string()), file.string());
    if (kind.name != file.stem().string())
      fail(file.string(), "name", fmt::format("expected the name of the file: {}", kind.name));
    catalogue[kind.name] = std::move(kind);
  }
  return catalogue;
}

}  // namespace medley
