#include <algorithm>
#include <nlohmann/json.hpp>

#include "medley/base/sha256.h"
#include "medley/plan/fields.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLine = 100;

std::string text_of(const Json& scalar) {
  return scalar.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Returns "key": for a member of an object.
std::string label_of(const Json& json, const std::string& key) {
  return json.is_object() ? text_of(key) + ": " : "";
}

std::string one_line(const Json& json) {
  if (!json.is_structured()) return text_of(json);
  std::string out(1, json.is_object() ? '{' : '[');
  for (const auto& [key, member] : json.items()) {
    if (out.size() > 1) out += ", ";
    out += label_of(json, key) + one_line(member);
  }
  return out + (json.is_object() ? '}' : ']');
}

bool has_containers(const Json& json) {
  return std::ranges::any_of(json, [](const Json& member) { return member.is_structured(); });
}

// Returns true for lists of scalars, and objects of scalars and such lists.
bool is_flat(const Json& json) {
  if (json.is_array()) return !has_containers(json);
  return std::ranges::none_of(
      json, [](const Json& member) { return member.is_structured() && has_containers(member); });
}

// Prints a flat value on one line if it fits; `before`: characters already on the line.
void print(const Json& json, size_t indent, size_t before, std::string& out) {
  if (is_flat(json)) {
    const std::string line = one_line(json);
    if (!json.is_structured() || before + line.size() < kLine) {
      out += line;
      return;
    }
  }
  out += json.is_object() ? '{' : '[';
  const char* separator = "\n";
  for (const auto& [key, member] : json.items()) {
    const std::string label = label_of(json, key);
    out += separator + std::string(indent + 2, ' ') + label;
    print(member, indent + 2, indent + 2 + label.size(), out);
    separator = ",\n";
  }
  out += "\n" + std::string(indent, ' ') + (json.is_object() ? '}' : ']');
}

}  // namespace

std::string print(const Plan& plan) {
  std::string out;
  print(to_ordered_json(plan), 0, 0, out);
  return out + "\n";
}

std::string hash(const Plan& plan) { return sha256_hex(print(plan)); }

}  // namespace medley
