#include "medley/base/json_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "medley/base/error.h"

namespace medley {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr size_t kExcerpt = 60;

std::string excerpt(const Json& json) {
  std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kExcerpt) text = text.substr(0, kExcerpt) + "...";
  return text;
}

std::string quote(const std::string& text) { return excerpt(Json(text)); }

std::string at_place(const std::string& file, const std::string& place) {
  return place.empty() ? file : file + ": " + place;
}

// Returns "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error ..."
// without the library's internals.
std::string plain(std::string what) {
  for (std::string_view before : {"] ", "parse error at ", "parse error: "})
    if (size_t at = what.find(before); at != std::string::npos) what.erase(0, at + before.size());
  return what;
}

class KeyWatch {
 public:
  explicit KeyWatch(std::string_view file) : file_(file) {}

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxDepth)
          throw Error(Blame::kCaller,
                      fmt::format("{}: found values nested deeper than {}, expected fewer levels",
                                  file_,
                                  kMaxDepth));
        keys_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second)
          throw Error(
              Blame::kCaller,
              fmt::format(
                  "{}: found key {} twice in one object, expected it once", file_, quote(key)));
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  std::string file_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

void JsonPlace::refuse(std::string_view expected) const {
  throw Error(
      Blame::kCaller,
      fmt::format("{}: found {}, expected {}", at_place(file, place), excerpt(*json), expected));
}

JsonPlace JsonPlace::element(size_t index) const {
  return {&(*json)[index], file, fmt::format("{}[{}]", place, index)};
}

JsonPlace JsonPlace::member(const std::string& key) const {
  const bool plain_key = std::all_of(
      key.begin(), key.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  std::string inner = plain_key ? (place.empty() ? key : place + "." + key)
                                : fmt::format("{}[{}]", place, quote(key));
  return {&json->at(key), file, std::move(inner)};
}

Json parse_json(std::string_view text, std::string_view file) {
  try {
    return Json::parse(text, KeyWatch(file));
  } catch (const Json::parse_error& error) {
    throw Error(Blame::kCaller, fmt::format("{}: {}, expected JSON", file, plain(error.what())));
  } catch (const Json::exception& error) {  // a number that exceeds a double
    throw Error(Blame::kCaller, fmt::format("{}: {}, expected JSON", file, plain(error.what())));
  }
}

bool says_format(std::string_view text, std::string_view format) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("format") && json["format"] == format;
}

std::string read_text(const JsonPlace& at) {
  if (!at.json->is_string()) at.refuse("a text");
  return at.json->get<std::string>();
}

int64_t read_integer(const JsonPlace& at, int64_t smallest, int64_t largest) {
  const auto& json = *at.json;
  const bool fits = json.is_number_unsigned()
                        ? json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                        : json.is_number_integer();
  if (!fits || json.get<int64_t>() < smallest || json.get<int64_t>() > largest)
    at.refuse(fmt::format("an integer from {} to {}", smallest, largest));
  return json.get<int64_t>();
}

std::vector<JsonPlace> read_list(const JsonPlace& at) {
  if (!at.json->is_array()) at.refuse("a list");
  std::vector<JsonPlace> elements;
  for (size_t i = 0; i < at.json->size(); ++i) elements.push_back(at.element(i));
  return elements;
}

std::vector<std::string> read_texts(const JsonPlace& at) {
  std::vector<std::string> texts;
  for (const JsonPlace& each : read_list(at)) texts.push_back(read_text(each));
  return texts;
}

std::vector<int64_t> read_integers(const JsonPlace& at, int64_t smallest, int64_t largest) {
  std::vector<int64_t> integers;
  for (const JsonPlace& each : read_list(at))
    integers.push_back(read_integer(each, smallest, largest));
  return integers;
}

void read_format(const JsonPlace& at, std::string_view format) {
  if (*at.json != format) at.refuse(fmt::format("\"{}\"", format));
}

void read_version(const JsonPlace& at) {
  if (!at.json->is_number_integer() || *at.json != 1)
    at.refuse("1, the only version that this Medley reads");
}

void read_object(const JsonPlace& at, const std::vector<JsonField>& fields) {
  if (!at.json->is_object()) at.refuse("an object");
  const auto place = at_place(at.file, at.place);
  for (const auto& [key, value] : at.json->items()) {
    if (std::none_of(fields.begin(), fields.end(), [&key = key](const JsonField& field) {
          return field.name == key;
        })) {
      std::string names;
      for (const JsonField& field : fields)
        names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", field.name);
      throw Error(
          Blame::kCaller,
          fmt::format("{}: found unknown key {}, expected one of {}", place, quote(key), names));
    }
  }
  for (const JsonField& field : fields) {
    if (at.json->contains(field.name)) {
      field.read(at.member(field.name));
    } else if (field.required) {
      throw Error(Blame::kCaller,
                  fmt::format("{}: found no \"{}\", expected one", place, field.name));
    }
  }
}

}  // namespace medley
