#pragma once

// A JSON value with its place in the file, for strict readers. Knows nothing of the content.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace medley {

struct JsonPlace {
  const nlohmann::json* json;
  std::string file;
  std::string place;  // "pipelines[0].stages[0].mesh"; "" for the whole file

  [[noreturn]] void refuse(std::string_view expected) const;
  JsonPlace element(size_t index) const;
  JsonPlace member(const std::string& key) const;
};

// Throws Error(kCaller) for invalid JSON, for too deep nesting and for a repeated key of an object.
nlohmann::json parse_json(std::string_view text, std::string_view file);
// Returns whether a text names `format`, even if the rest is invalid.
bool says_format(std::string_view text, std::string_view format);

std::string read_text(const JsonPlace& at);
int64_t read_integer(const JsonPlace& at, int64_t smallest, int64_t largest);
std::vector<JsonPlace> read_list(const JsonPlace& at);
std::vector<std::string> read_texts(const JsonPlace& at);
std::vector<int64_t> read_integers(const JsonPlace& at, int64_t smallest, int64_t largest);

// Checks the format field that begins every file.
void read_format(const JsonPlace& at, std::string_view format);
void read_version(const JsonPlace& at);

// A field that an object may have.
struct JsonField {
  std::string name;
  bool required;
  std::function<void(const JsonPlace&)> read;
};
// Reads the fields in their order. Throws for an unknown key or a missing required one.
void read_object(const JsonPlace& at, const std::vector<JsonField>& fields);

}  // namespace medley
