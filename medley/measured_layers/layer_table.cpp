#include "medley/measured_layers/layer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "medley/base/error.h"
#include "medley/base/json_place.h"
#include "medley/base/sha256.h"

namespace medley {
namespace {

constexpr size_t kMostLayers = 4096;
constexpr int64_t kMostDegree = 4096;
constexpr int64_t kMostRows = int64_t{1} << 32;
constexpr int64_t kMostBytes = int64_t{1} << 50;  // sums of all layers still fit
constexpr int64_t kMostTime = int64_t{1} << 40;   // 18 minutes

double read_factor(const JsonPlace& at, double least) {
  const std::string expected = fmt::format("a number from {} to 1000", least);
  if (!at.json->is_number()) at.refuse(expected);
  const auto value = at.json->get<double>();
  if (!(value >= least && value <= 1000)) at.refuse(expected);
  return value;
}

Bytes read_bytes(const JsonPlace& at) { return {read_integer(at, 0, kMostBytes)}; }

std::vector<std::string> read_layers(const JsonPlace& at) {
  std::vector<std::string> layers = read_texts(at);
  if (layers.empty() || layers.size() > kMostLayers)
    at.refuse(fmt::format("1 to {} kinds of layers", kMostLayers));
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i].empty()) at.element(i).refuse("the name of a kind of layer");
  return layers;
}

void read_runtime(const JsonPlace& at, RunConstants& run) {
  const auto found = std::ranges::find(kRuntimes, read_text(at), &KnownRuntime::name);
  if (found == kRuntimes.end()) at.refuse("medley or megatron-deepspeed");
  run.runtime = static_cast<size_t>(found - kRuntimes.begin());
  run.state = found->state;
  run.blocking = found->blocking;
}

RunConstants read_constants(const JsonPlace& at) {
  RunConstants run;
  read_object(
      at,
      {{"runtime", false, [&](const JsonPlace& p) { read_runtime(p, run); }},
       {"state", false, [&](const JsonPlace& p) { run.state = read_factor(p, 1); }},
       {"saved", false, [&](const JsonPlace& p) { run.saved = read_factor(p, 0); }},
       {"fixed_bytes", false, [&](const JsonPlace& p) { run.fixed = read_bytes(p); }},
       {"all_reduce", false, [&](const JsonPlace& p) { run.all_reduce = read_factor(p, 0); }},
       {"blocking", false, [&](const JsonPlace& p) { run.blocking = read_factor(p, 0); }}});
  return run;
}

// Reads one entry for each type of layer, and no others.
template <typename Entry, typename Read>
std::map<std::string, Entry> read_kinds(const JsonPlace& at,
                                        const std::set<std::string>& kinds,
                                        const Read& read) {
  std::map<std::string, Entry> entries;
  std::vector<JsonField> fields;
  for (const std::string& kind : kinds)
    fields.push_back({kind, true, [&](const JsonPlace& p) { entries[kind] = read(p); }});
  read_object(at, fields);
  return entries;
}

LayerBytes read_layer_bytes(const JsonPlace& at) {
  LayerBytes bytes;
  read_object(at,
              {{"parameters", true, [&](const JsonPlace& p) { bytes.parameters = read_bytes(p); }},
               {"saved", true, [&](const JsonPlace& p) { bytes.saved = read_bytes(p); }},
               {"output", true, [&](const JsonPlace& p) { bytes.output = read_bytes(p); }},
               {"tied", false, [&](const JsonPlace& p) { bytes.tied = read_bytes(p); }}});
  if (bytes.tied > bytes.parameters)
    at.refuse(fmt::format("tied to be at most the {} bytes of parameters", bytes.parameters.value));
  return bytes;
}

LayerTimes read_layer_times(const JsonPlace& at) {
  const std::vector<int64_t> ns = read_integers(at, 0, kMostTime);
  if (ns.size() != 3) at.refuse("nanoseconds of forward, backward and update");
  return {{ns[0]}, {ns[1]}, {ns[2]}};
}

JsonField degree_field(int& degree) {
  return {"tensor_parallel", true, [&](const JsonPlace& p) {
            degree = static_cast<int>(read_integer(p, 1, kMostDegree));
          }};
}

MeasuredBytes read_measured_bytes(const JsonPlace& at, const std::set<std::string>& kinds) {
  MeasuredBytes each;
  read_object(at, {degree_field(each.tensor_parallel), {"layers", true, [&](const JsonPlace& p) {
                                                          each.kinds = read_kinds<LayerBytes>(
                                                              p, kinds, read_layer_bytes);
                                                        }}});
  return each;
}

MeasuredTimes read_measured_times(const JsonPlace& at, const std::set<std::string>& kinds) {
  MeasuredTimes each;
  read_object(
      at,
      {{"device",
        true,
        [&](const JsonPlace& p) {
          each.device = read_text(p);
          if (each.device.empty()) p.refuse("a device type");
        }},
       degree_field(each.tensor_parallel),
       {"rows", true, [&](const JsonPlace& p) { each.rows = read_integer(p, 1, kMostRows); }},
       {"ns", true, [&](const JsonPlace& p) {
          each.kinds = read_kinds<LayerTimes>(p, kinds, read_layer_times);
        }}});
  return each;
}

auto key(const MeasuredTimes& each) {
  return std::tie(each.device, each.tensor_parallel, each.rows);
}

void sort_unique(LayerTable& table, std::string_view file) {
  std::ranges::stable_sort(table.bytes, {}, &MeasuredBytes::tensor_parallel);
  std::ranges::stable_sort(table.times, [](auto& a, auto& b) { return key(a) < key(b); });
  const auto fail = [&](const std::string& what) {
    throw Error(Blame::kCaller, fmt::format("{}: {}", file, what));
  };
  for (const auto& [degree, kinds] : table.bytes) {
    Bytes tied;
    for (const auto& [kind, bytes] : kinds) {
      if (tied.value > 0 && bytes.tied.value > 0 && tied != bytes.tied)
        fail(
            fmt::format("bytes: found {} and {} tied bytes at tensor_parallel {}, expected as "
                        "many in all layers: they are one tensor",
                        tied.value,
                        bytes.tied.value,
                        degree));
      tied = std::max(tied, bytes.tied);
    }
  }
  for (size_t i = 1; i < table.bytes.size(); ++i)
    if (table.bytes[i - 1].tensor_parallel == table.bytes[i].tensor_parallel)
      fail(fmt::format("bytes: found tensor_parallel {} twice, expected each once",
                       table.bytes[i].tensor_parallel));
  for (size_t i = 0; i < table.times.size(); ++i) {
    const MeasuredTimes& each = table.times[i];
    const std::string what = fmt::format(
        "{}, tensor_parallel {}, rows {}", each.device, each.tensor_parallel, each.rows);
    if (i > 0 && key(table.times[i - 1]) == key(each))
      fail(fmt::format("times: found {} twice, expected each once", what));
    if (!std::ranges::binary_search(
            table.bytes, each.tensor_parallel, {}, &MeasuredBytes::tensor_parallel))
      fail(fmt::format("times: found {}, expected bytes of that degree as well", what));
  }
}

}  // namespace

bool is_layer_table(std::string_view text) { return says_format(text, "medley-layers"); }

LayerTable parse_layer_table(std::string_view text, std::string_view file) {
  const nlohmann::json json = parse_json(text, file);
  LayerTable table;
  std::set<std::string> kinds;
  read_object({&json, std::string(file), ""},
              {{"format", true, [](const JsonPlace& p) { read_format(p, "medley-layers"); }},
               {"version", true, read_version},
               {"model", true, [&](const JsonPlace& p) { table.model = read_text(p); }},
               {"source", true, [&](const JsonPlace& p) { table.source = read_text(p); }},
               {"layers",
                true,
                [&](const JsonPlace& p) {
                  table.layers = read_layers(p);
                  kinds.insert(table.layers.begin(), table.layers.end());
                }},
               {"run", false, [&](const JsonPlace& p) { table.run = read_constants(p); }},
               {"bytes",
                true,
                [&](const JsonPlace& p) {
                  for (const JsonPlace& each : read_list(p))
                    table.bytes.push_back(read_measured_bytes(each, kinds));
                }},
               {"times", true, [&](const JsonPlace& p) {
                  for (const JsonPlace& each : read_list(p))
                    table.times.push_back(read_measured_times(each, kinds));
                }}});
  sort_unique(table, file);
  return table;
}

std::string print(const LayerTable& table) {
  const RunConstants& run = table.run;
  nlohmann::json json = {{"format", "medley-layers"},
                         {"version", 1},
                         {"model", table.model},
                         {"source", table.source},
                         {"layers", table.layers},
                         {"run",
                          {{"runtime", kRuntimes.at(run.runtime).name},
                           {"state", run.state},
                           {"saved", run.saved},
                           {"all_reduce", run.all_reduce},
                           {"blocking", run.blocking}}},
                         {"bytes", nlohmann::json::array()},
                         {"times", nlohmann::json::array()}};
  if (run.fixed) json["run"]["fixed_bytes"] = run.fixed->value;
  for (const MeasuredBytes& each : table.bytes) {
    nlohmann::json kinds;
    for (const auto& [name, of] : each.kinds) {
      kinds[name] = {{"parameters", of.parameters.value},
                     {"saved", of.saved.value},
                     {"output", of.output.value}};
      if (of.tied.value > 0) kinds[name]["tied"] = of.tied.value;
    }
    json["bytes"].push_back({{"tensor_parallel", each.tensor_parallel}, {"layers", kinds}});
  }
  for (const MeasuredTimes& each : table.times) {
    nlohmann::json kinds;
    for (const auto& [name, of] : each.kinds)
      kinds[name] = {of.forward.value, of.backward.value, of.update.value};
    json["times"].push_back({{"device", each.device},
                             {"tensor_parallel", each.tensor_parallel},
                             {"rows", each.rows},
                             {"ns", kinds}});
  }
  return json.dump() + "\n";
}

std::string hash(const LayerTable& table) { return sha256_hex(print(table)); }

}  // namespace medley
