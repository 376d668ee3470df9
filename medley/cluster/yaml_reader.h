#pragma once

// A strict reader of one YAML document. Each value has its location; unread keys are errors. Knows
// nothing of clusters.

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "medley/cluster/quantity.h"

namespace medley {

class YamlFields;

// A value and its location: `file`, line, and path ("nodes[1].count").
class YamlValue {
 public:
  YamlValue(const YAML::Node& node, std::string path, std::string_view file)
      : node_(node), path_(std::move(path)), file_(file) {}

  // Throws Error(kCaller) "<file>:<line>: <path>: <what>".
  [[noreturn]] void fail(std::string_view what) const;
  // Each function fails unless the value has the named form. A key without a value has no fields
  // and no items.
  YamlFields fields() const;
  std::vector<YamlValue> items() const;
  std::string text() const;  // any non-empty scalar
  bool boolean() const;      // true, false
  int64_t positive_integer(int64_t most) const;
  double positive_number() const;
  double number_from_zero() const;
  double positive_quantity(Dimension dimension) const;
  double quantity_from_zero(Dimension dimension) const;

 private:
  std::string scalar() const;  // empty if not a scalar
  double number() const;
  double quantity(Dimension dimension) const;

  YAML::Node node_;
  std::string path_;
  std::string_view file_;
  int key_line_ = 0;  // line of a key without a value; else 0
};

// The fields of a mapping.
class YamlFields {
 public:
  YamlFields(YamlValue mapping, std::map<std::string, YamlValue> values)
      : mapping_(std::move(mapping)), values_(std::move(values)) {}

  // Fails at a key that is not one of `keys`.
  void only(const std::vector<std::string_view>& keys) const;
  const YamlValue* find(const std::string& key) const;     // null if absent
  const YamlValue& require(const std::string& key) const;  // fails if absent
  const std::map<std::string, YamlValue>& all() const& { return values_; }
  std::map<std::string, YamlValue> all() && { return std::move(values_); }
  const YamlValue& mapping() const { return mapping_; }

 private:
  YamlValue mapping_;
  std::map<std::string, YamlValue> values_;
};

// Throws Error(kCaller) if `text` is not exactly one YAML document. `file` outlives the result.
YamlValue read_yaml(std::string_view text, std::string_view file);

}  // namespace medley
