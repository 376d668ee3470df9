#pragma once

// A value of a JSON file that knows where it stands, for readers that accept exactly what they
// expect. Knows nothing of what is read.

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

  // Throws Error(kCaller) "<file>: <place>: found <this>, expected <expected>".
  [[noreturn]] void refuse(std::string_view expected) const;
  JsonPlace element(size_t index) const;
  JsonPlace member(const std::string& key) const;
};

// Throws Error(kCaller) for text that is no JSON, nests deeper than a reader needs, or has a key
// twice in an object.
nlohmann::json parse_json(std::string_view text, std::string_view file);
// Whether a text says that it is of a format, whatever else is wrong with it.
bool says_format(std::string_view text, std::string_view format);

std::string read_text(const JsonPlace& at);
int64_t read_integer(const JsonPlace& at, int64_t smallest, int64_t largest);
std::vector<JsonPlace> read_list(const JsonPlace& at);
std::vector<std::string> read_texts(const JsonPlace& at);
std::vector<int64_t> read_integers(const JsonPlace& at, int64_t smallest, int64_t largest);

// What every file of ours begins with.
void read_format(const JsonPlace& at, std::string_view format);
void read_version(const JsonPlace& at);

// What may stand in an object.
struct JsonField {
  std::string name;
  bool required;
  std::function<void(const JsonPlace&)> read;
};
// Reads the fields in their order. A key that is none of them, or a required one that is missing,
// is an error.
void read_object(const JsonPlace& at, const std::vector<JsonField>& fields);

}  // namespace medley
