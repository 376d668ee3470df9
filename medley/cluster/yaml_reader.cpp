#include "medley/cluster/yaml_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "medley/base/error.h"

namespace medley {
namespace {

// Larger than any cluster file, small enough for any machine.
constexpr size_t kMostBytes = 1 << 20;

// Returns the file's text at this place, on one short line.
std::string found(const YAML::Node& node) {
  if (node.IsScalar()) {
    std::string text = node.Scalar();
    for (char& c : text)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    return text.size() > 60 ? text.substr(0, 60) + "..." : text;
  }
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  return "nothing";
}

int line_of(const YAML::Node& node) { return std::max(node.Mark().line, 0) + 1; }

bool is_plain_key(std::string_view key) {
  return !key.empty() && key.size() <= 60 &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
}

// Ignores all events but the end of a document.
class NoEvents : public YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&,
                const std::string&,
                YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&,
                       const std::string&,
                       YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&,
                  const std::string&,
                  YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Returns 2 if there are more. yaml-cpp 0.7 finds endless empty documents if one begins with a
// comma, so YAML::LoadAll() never returns.
int count_documents(const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  NoEvents ignore;
  int count = 0;
  while (count < 2 && parser.HandleNextDocument(ignore)) ++count;
  return count;
}

}  // namespace

void YamlValue::fail(std::string_view what) const {
  const std::string place = path_.empty() ? "" : path_ + ": ";
  throw Error(
      Blame::kCaller,
      fmt::format("{}:{}: {}{}", file_, key_line_ ? key_line_ : line_of(node_), place, what));
}

YamlFields YamlValue::fields() const {
  if (key_line_) return {*this, {}};
  if (!node_.IsMap()) fail(fmt::format("expected a mapping: {}", found(node_)));
  std::map<std::string, YamlValue> values;
  for (const auto& entry : node_) {
    const YAML::Node key = entry.first, value = entry.second;
    if (!key.IsScalar() || !is_plain_key(key.Scalar()))
      YamlValue(key, path_, file_).fail(fmt::format("expected a word as key: {}", found(key)));
    const std::string& name = key.Scalar();
    YamlValue field(value, path_.empty() ? name : path_ + "." + name, file_);
    // An absent value ("count:") has no line of its own, but its key has.
    if (value.IsNull()) field.key_line_ = line_of(key);
    if (!values.emplace(name, field).second)
      YamlValue(key, path_, file_).fail(fmt::format("key stands twice: {}", name));
  }
  return {*this, std::move(values)};
}

std::vector<YamlValue> YamlValue::items() const {
  if (key_line_) return {};
  if (!node_.IsSequence()) fail(fmt::format("expected a list: {}", found(node_)));
  std::vector<YamlValue> items;
  for (const YAML::Node& item : node_)
    items.emplace_back(item, fmt::format("{}[{}]", path_, items.size()), file_);
  return items;
}

std::string YamlValue::scalar() const {
  if (key_line_) fail("has no value");
  return node_.IsScalar() ? node_.Scalar() : "";
}

std::string YamlValue::text() const {
  const std::string text = scalar();
  if (text.empty()) fail(fmt::format("expected a text: {}", found(node_)));
  return text;
}

bool YamlValue::boolean() const {
  const std::string text = scalar();
  if (text == "true") return true;
  if (text == "false") return false;
  fail(fmt::format("expected true or false: {}", found(node_)));
}

int64_t YamlValue::positive_integer(int64_t most) const {
  const std::string text = scalar();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || end != text.data() + text.size() || error == std::errc::invalid_argument)
    fail(fmt::format("expected a whole number: {}", found(node_)));
  if (text.starts_with('-') || (number == 0 && error == std::errc()))
    fail(fmt::format("must be positive: {}", text));
  if (error != std::errc() || number > most)
    fail(fmt::format("must be at most {}: {}", most, found(node_)));
  return number;
}

double YamlValue::number() const {
  const std::string text = scalar();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || end != text.data() + text.size() || error != std::errc() ||
      !std::isfinite(number))
    fail(fmt::format("expected a number: {}", found(node_)));
  return number;
}

double YamlValue::positive_number() const {
  const double value = number();
  if (value <= 0) fail(fmt::format("must be positive: {}", found(node_)));
  return value;
}

double YamlValue::number_from_zero() const {
  const double value = number();
  if (value < 0) fail(fmt::format("must not be negative: {}", found(node_)));
  return value;
}

double YamlValue::quantity(Dimension dimension) const {
  const auto value = parse_quantity(scalar(), dimension);
  if (!value) fail(fmt::format("expected {}: {}", expected_quantity(dimension), found(node_)));
  return *value;
}

double YamlValue::positive_quantity(Dimension dimension) const {
  // "-3" lacks a unit too, but the sign is reported first.
  if (scalar().starts_with('-')) fail(fmt::format("must be positive: {}", found(node_)));
  const double value = quantity(dimension);
  if (value <= 0) fail(fmt::format("must be positive: {}", found(node_)));
  return value;
}

double YamlValue::quantity_from_zero(Dimension dimension) const {
  if (scalar().starts_with('-')) fail(fmt::format("must not be negative: {}", found(node_)));
  return quantity(dimension);
}

void YamlFields::only(const std::vector<std::string_view>& keys) const {
  for (const auto& [key, value] : values_)
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      value.fail(fmt::format("unknown key, expected one of: {}", fmt::join(keys, ", ")));
}

const YamlValue* YamlFields::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const YamlValue& YamlFields::require(const std::string& key) const {
  if (const YamlValue* value = find(key)) return *value;
  mapping_.fail(fmt::format("key is missing: {}", key));
}

YamlValue read_yaml(std::string_view text, std::string_view file) {
  if (text.size() > kMostBytes)
    throw Error(Blame::kCaller,
                fmt::format("{}:1: must be at most {} bytes: {}", file, kMostBytes, text.size()));
  const std::string all(text);
  int documents = 0;
  YAML::Node first;
  try {
    documents = count_documents(all);
    if (documents == 1) first = YAML::Load(all);
  } catch (const YAML::Exception& error) {
    throw Error(
        Blame::kCaller,
        fmt::format("{}:{}: not YAML: {}", file, std::max(error.mark.line, 0) + 1, error.msg));
  }
  if (documents != 1 || first.IsNull())
    throw Error(Blame::kCaller,
                fmt::format("{}:1: expected one YAML document: {}",
                            file,
                            documents > 1 ? "more than one" : "an empty file"));
  return {first, "", file};
}

}  // namespace medley
