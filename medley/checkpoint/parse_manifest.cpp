#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "medley/base/json_place.h"
#include "medley/checkpoint/manifest.h"

namespace medley {
namespace {

constexpr int64_t kMostNumber = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr size_t kMostDims = 64;
constexpr size_t kHashDigits = 64;
constexpr size_t kMostOfName = 1000, kMostOfFileName = 255;

auto into(std::string& text) {
  return [&text](const JsonPlace& place) { text = read_text(place); };
}

auto into(int64_t& number, int64_t least = 0, int64_t most = kMostNumber) {
  return
      [&number, least, most](const JsonPlace& place) { number = read_integer(place, least, most); };
}

template <typename Read>
void read_map(const JsonPlace& place, Read read) {
  if (!place.json->is_object()) place.refuse("an object");
  for (const auto& [key, unused] : place.json->items()) read(key, place.member(key));
}

Fact read_fact(const JsonPlace& place) {
  const nlohmann::json& json = *place.json;
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number()) return read_integer(place, -kMostNumber, kMostNumber);
  place.refuse("a text, a number, true or false");
}

void read_name(const JsonPlace& place, std::string& name) {
  name = read_text(place);
  const bool is_plain = std::ranges::all_of(name, [](unsigned char c) { return c >= ' '; });
  if (name.empty() || name.size() > kMostOfName || !is_plain)
    place.refuse(
        fmt::format("a name of 1 to {} bytes, none of them a control character", kMostOfName));
}

DataCursor read_cursor(const JsonPlace& place) {
  DataCursor data;
  read_object(place,
              {{"epoch", true, into(data.epoch)},
               {"batch", true, into(data.batch)},
               {"seed", true, into(data.seed, -kMostNumber)}});
  return data;
}

void read_hash(const JsonPlace& place, std::string& hash) {
  hash = read_text(place);
  if (hash.size() != kHashDigits || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    place.refuse("64 hexadecimal digits");
}

StoredFile read_file(const JsonPlace& place) {
  StoredFile file;
  read_object(
      place,
      {{"name", true, [&](const JsonPlace& p) { read_name(p, file.name); }},
       {"bytes", true, into(file.bytes)},
       {"header_sha256", true, [&](const JsonPlace& p) { read_hash(p, file.header_sha256); }}});
  if (file.name.starts_with('.') || file.name.find('/') != std::string::npos ||
      file.name.size() > kMostOfFileName)
    place.member("name").refuse("a name of a file in this folder");
  return file;
}

// Reads sizes whose product stays far below the limit of 64 bits.
std::vector<int64_t> read_sizes(const JsonPlace& place) {
  std::vector<int64_t> sizes = read_integers(place, 0, kMostElements);
  if (sizes.size() > kMostDims) place.refuse(fmt::format("at most {} sizes", kMostDims));
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size > kMostElements / elements)
      place.refuse(fmt::format("at most {} elements", kMostElements));
    elements *= std::max<int64_t>(size, 1);
  }
  return sizes;
}

// Reads one of possibly a hundred thousand boxes, so it builds texts only for errors.
void read_box(const JsonPlace& boxes, size_t i, size_t num_files, StoredValue& value) {
  const nlohmann::json& json = (*boxes.json)[i];
  const size_t expected = 1 + 2 * value.factors.size();
  bool good = json.is_array() && json.size() == expected;
  for (size_t k = 0; good && k < expected; ++k) good = json[k].is_number_unsigned();
  if (!good || json[0].get<uint64_t>() >= num_files)
    boxes.element(i).refuse(fmt::format(
        "a file below {}, then start and size in {} factors", num_files, value.factors.size()));
  Box box;
  for (size_t f = 0; f < value.factors.size(); ++f) {
    const auto begin = json[1 + 2 * f].get<uint64_t>(), size = json[2 + 2 * f].get<uint64_t>();
    const auto whole = static_cast<uint64_t>(value.factors[f]);
    if (begin > whole || size > whole - begin || size == 0)
      boxes.element(i).refuse(fmt::format("a box inside of factor {}, which is {}", f, whole));
    box.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(begin + size)});
  }
  value.boxes.push_back(std::move(box));
  value.files.push_back(json[0].get<int>());
}

StoredValue read_value(const JsonPlace& place, size_t num_files) {
  StoredValue value;
  const auto read_dtype = [&](const JsonPlace& p) {
    const auto dtype = parse_dtype(read_text(p));
    if (!dtype) p.refuse("f64, f32, f16, bf16, i64, i32, i16, i8, u8 or bool");
    value.dtype = *dtype;
  };
  const auto read_factors = [&](const JsonPlace& p) {
    value.factors = read_sizes(p);
    if (product_of(value.factors) != product_of(value.shape))
      p.refuse(fmt::format("factors of {} elements", product_of(value.shape)));
  };
  const auto read_boxes = [&](const JsonPlace& p) {
    if (!p.json->is_array()) p.refuse("a list");
    for (size_t i = 0; i < p.json->size(); ++i) read_box(p, i, num_files, value);
  };
  read_object(place,
              {{"kind", true, into(value.kind)},
               {"name", true, [&](const JsonPlace& p) { read_name(p, value.name); }},
               {"dtype", true, read_dtype},
               {"shape", true, [&](const JsonPlace& p) { value.shape = read_sizes(p); }},
               {"factors", true, read_factors},
               {"boxes", true, read_boxes}});
  if (value.kind != "parameter" && value.kind != "buffer" && value.kind != "state")
    place.member("kind").refuse("parameter, buffer or state");
  return value;
}

std::vector<JsonField> fields_of(TrainingState& state) {
  return {{"step", true, into(state.step)},
          {"global_batch", true, into(state.global_batch)},
          {"seed", true, into(state.seed, -kMostNumber)},
          {"data", false, [&](const JsonPlace& p) { state.data = read_cursor(p); }},
          {"optimizer",
           true,
           [&](const JsonPlace& p) {
             read_map(p, [&](const auto& key, const auto& at) {
               state.optimizer.emplace(key, read_fact(at));
             });
           }},
          {"schedule", true, into(state.schedule)},
          {"graph", true, into(state.graph)},
          {"plan", true, into(state.plan)},
          {"cluster", true, into(state.cluster)},
          {"versions", true, [&](const JsonPlace& p) {
             read_map(p, [&](const auto& key, const auto& at) {
               state.versions.emplace(key, read_text(at));
             });
           }}};
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& file) {
  const nlohmann::json json = parse_json(text, file);
  Manifest manifest;
  std::set<std::pair<std::string, std::string>> known;
  std::vector<JsonField> fields{
      {"format", true, [](const JsonPlace& p) { read_format(p, "medley-checkpoint"); }},
      {"version", true, read_version}};
  for (JsonField& field : fields_of(manifest.state)) fields.push_back(std::move(field));
  fields.push_back({"files", true, [&](const JsonPlace& p) {
                      for (const JsonPlace& at : read_list(p))
                        manifest.files.push_back(read_file(at));
                    }});
  fields.push_back({"values", true, [&](const JsonPlace& p) {
                      for (const JsonPlace& at : read_list(p)) {
                        StoredValue value = read_value(at, manifest.files.size());
                        if (!known.emplace(value.kind, value.name).second)
                          at.member("name").refuse("a name that no other value has");
                        manifest.values.push_back(std::move(value));
                      }
                    }});
  read_object({&json, file, ""}, fields);
  verify(manifest, file);
  return manifest;
}

}  // namespace medley
