#include "medley/ops/instance.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

InstanceBuilder::InstanceBuilder(const Graph& graph, const Op& op) {
  const auto shape = [&](ValueId value) {
    return value == kNone ? std::vector<Size>() : graph.values[at(value)].type.shape;
  };
  for (ValueId value : medley::operands(op)) operand_shapes_.push_back(shape(value));
  for (ValueId value : op.results) result_shapes_.push_back(shape(value));
  for (const auto& sizes : operand_shapes_) instance_.operands.emplace_back(sizes.size());
  for (const auto& sizes : result_shapes_) instance_.results.emplace_back(sizes.size());
  instance_.shape_only.resize(operand_shapes_.size());
}

int InstanceBuilder::label(const Size& size, bool locked) {
  if (size == Size(1)) return kNone;
  const auto id = static_cast<int>(instance_.labels.size());
  instance_.labels.push_back({fmt::format("d{}", id), size, locked, false, false});
  return id;
}

void InstanceBuilder::label_operand(size_t i, size_t dim, int label) {
  if (label != kNone) instance_.operands.at(i).at(dim).push_back(label);
}

void InstanceBuilder::label_result(size_t i, size_t dim, int label) {
  if (label != kNone) instance_.results.at(i).at(dim).push_back(label);
}

void InstanceBuilder::map(size_t i, size_t dim, size_t j, size_t result_dim) {
  MEDLEY_CHECK(operand(i).at(dim) == result(j).at(result_dim));
  const int both = label(operand(i)[dim]);
  label_operand(i, dim, both);
  label_result(j, result_dim, both);
}

Instance InstanceBuilder::finish(std::vector<std::vector<int>> linear) {
  const auto lock_rest = [&](auto& tensors, const auto& shapes) {
    for (size_t i = 0; i < tensors.size(); ++i)
      for (size_t d = 0; d < tensors[i].size(); ++d)
        if (tensors[i][d].empty() && shapes[i][d] != Size(1))
          tensors[i][d].push_back(label(shapes[i][d], true));
  };
  lock_rest(instance_.operands, operand_shapes_);
  lock_rest(instance_.results, result_shapes_);
  instance_.linear = std::move(linear);
  instance_.absent.resize(instance_.results.size());
  for (auto& each : instance_.absent) each.resize(instance_.labels.size(), Absent::kSum);
  return std::move(instance_);
}

namespace {

class InstancePrinter {
 public:
  InstancePrinter(const Instance& instance, const std::vector<std::string>& symbols)
      : instance_(instance), symbols_(symbols), shown_(instance.labels.size()) {}

  std::string print() {
    for (size_t i = 0; i < instance_.operands.size(); ++i) {
      if (i > 0) text_ += ", ";
      if (instance_.shape_only[i]) text_ += "#";
      tensor(instance_.operands[i]);
    }
    text_ += " ->";
    for (size_t j = 0; j < instance_.results.size(); ++j) {
      text_ += j > 0 ? ", " : " ";
      tensor(instance_.results[j]);
      for (size_t l = 0; l < instance_.labels.size(); ++l) {
        if (instance_.absent[j][l] == Absent::kSum) continue;
        text_ += instance_.absent[j][l] == Absent::kMax ? " ^" : " =";
        text_ += instance_.labels[l].name;
      }
    }
    for (size_t g = 0; g < instance_.linear.size(); ++g)
      text_ += fmt::format("{}{{{}}}", g == 0 ? " " : "", fmt::join(instance_.linear[g], "+"));
    return text_;
  }

 private:
  void tensor(const std::vector<std::vector<int>>& dims) {
    if (dims.empty()) text_ += "()";
    for (size_t d = 0; d < dims.size(); ++d) {
      if (d > 0) text_ += " ";
      if (dims[d].empty()) text_ += "1";
      if (dims[d].size() > 1) text_ += "(";
      for (size_t k = 0; k < dims[d].size(); ++k) {
        if (k > 0) text_ += " ";
        label(at(dims[d][k]));
      }
      if (dims[d].size() > 1) text_ += ")";
    }
  }

  void label(size_t id) {
    const Label& label = instance_.labels.at(id);
    text_ += label.name;
    if (shown_[id]) return;
    shown_[id] = true;
    text_ += "=" + medley::to_string(label.size, symbols_);
    text_ += label.composite ? "%" : label.locked ? "!" : "";
    if (label.select) text_ += "~";
  }

  const Instance& instance_;
  const std::vector<std::string>& symbols_;
  std::vector<bool> shown_;
  std::string text_;
};

}  // namespace

std::string to_string(const Instance& instance, const std::vector<std::string>& symbols) {
  return InstancePrinter(instance, symbols).print();
}

bool is_none(const Op& op, size_t argument) {
  return argument >= op.arguments.size() ||
         std::holds_alternative<NoneArgument>(op.arguments[argument]);
}

std::optional<int64_t> integer(const Op& op, size_t argument) {
  if (argument >= op.arguments.size()) return std::nullopt;
  const auto* size = std::get_if<Size>(&op.arguments[argument]);
  if (!size || !size->is_constant()) return std::nullopt;
  return size->coefficient;
}

std::optional<double> number(const Op& op, size_t argument) {
  if (argument >= op.arguments.size()) return std::nullopt;
  if (const auto* value = std::get_if<double>(&op.arguments[argument])) return *value;
  if (const auto* value = std::get_if<bool>(&op.arguments[argument])) return *value ? 1.0 : 0.0;
  if (const auto value = integer(op, argument)) return static_cast<double>(*value);
  return std::nullopt;
}

bool flag(const Op& op, size_t argument) { return number(op, argument).value_or(0) != 0; }

std::optional<size_t> dim(const Op& op, size_t argument, size_t rank) {
  auto value = integer(op, argument);
  if (!value) return std::nullopt;
  if (*value < 0) *value += static_cast<int64_t>(rank);
  if (*value < 0 || *value >= static_cast<int64_t>(rank)) return std::nullopt;
  return at(*value);
}

std::optional<std::vector<size_t>> dims(const Op& op, size_t argument, size_t rank) {
  std::vector<size_t> all;
  if (!is_none(op, argument)) {
    if (const auto one = dim(op, argument, rank)) return std::vector<size_t>{*one};
    const auto* sizes = std::get_if<std::vector<Size>>(&op.arguments[argument]);
    if (!sizes) return std::nullopt;
    for (const Size& size : *sizes) {
      if (!size.is_constant()) return std::nullopt;
      const int64_t value =
          size.coefficient + (size.coefficient < 0 ? static_cast<int64_t>(rank) : 0);
      if (value < 0 || value >= static_cast<int64_t>(rank)) return std::nullopt;
      all.push_back(at(value));
    }
    std::ranges::sort(all);
  }
  if (all.empty())
    for (size_t d = 0; d < rank; ++d) all.push_back(d);
  return all;
}

}  // namespace medley
