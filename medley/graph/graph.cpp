#include "medley/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "medley/base/error.h"

namespace medley {
namespace {

ValueId add_value(Graph& graph, Value value) {
  graph.values.push_back(std::move(value));
  return static_cast<ValueId>(graph.values.size() - 1);
}

}  // namespace

ValueId add_input(Graph& graph, InputKind kind, std::string name, TensorType type) {
  const ValueId id = add_value(graph, {std::move(type), kNone, 0});
  StateRole role = kind == InputKind::kState ? role_of_state(name) : StateRole{};
  graph.inputs.push_back({kind, std::move(name), id, std::move(role)});
  return id;
}

std::vector<ValueId> add_op(Graph& graph, Op op, const std::vector<TensorType>& types) {
  if (op.results.empty()) op.results.assign(types.size(), 0);
  const auto absent = std::count(op.results.begin(), op.results.end(), kNone);
  MEDLEY_CHECK_EQ(op.results.size() - at(absent), types.size());
  const auto producer = static_cast<OpId>(graph.ops.size());
  std::vector<ValueId> fresh;
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (op.results[i] == kNone) continue;
    op.results[i] = add_value(graph, {types[fresh.size()], producer, static_cast<int32_t>(i)});
    fresh.push_back(op.results[i]);
  }
  graph.ops.push_back(std::move(op));
  return fresh;
}

std::vector<ValueId> operands(const Op& op) {
  std::vector<ValueId> all;
  all.reserve(op.arguments.size());
  for (const Argument& argument : op.arguments) {
    if (const auto* one = std::get_if<ValueArgument>(&argument)) {
      all.push_back(one->value);
    } else if (const auto* list = std::get_if<std::vector<ValueArgument>>(&argument)) {
      for (const ValueArgument& each : *list) all.push_back(each.value);
    }
  }
  return all;
}

std::string_view short_name(const Op& op) {
  const std::string_view name = op.name;
  const size_t first = name.find('.');
  const size_t last = name.rfind('.');
  if (first == last) return name;
  return name.substr(first + 1, last - first - 1);
}

std::vector<std::string> stable_names(const Graph& graph) {
  std::unordered_map<std::string, int64_t> count;
  std::vector<std::string> names;
  names.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    const char* mark = op.phase == Phase::kBackward ? "~" : "";
    std::string name = fmt::format("{}/{}{}", op.module, mark, short_name(op));
    const int64_t k = count[name]++;
    names.push_back(fmt::format("{}#{}", name, k));
  }
  return names;
}

bool has_rows(const TensorType& type) {
  return !std::ranges::all_of(type.shape, &Size::is_constant);
}

std::set<std::string> carried_inputs(const Graph& graph) {
  std::set<std::string> names;
  for (const Output& output : graph.outputs)
    if (output.kind == OutputKind::kMetric && is_carried(output.name))
      names.insert(output.name.substr(kCarried.size()));
  return names;
}

StateRole role_of_state(std::string_view name) {
  using Kind = StateRole::Kind;
  if (name == kLossScaleState) return {Kind::kLossScale, ""};
  return {name.starts_with(kMasterState)    ? Kind::kMaster
          : name.starts_with(kAverageState) ? Kind::kAverage
                                            : Kind::kMoment,
          std::string(name.substr(name.find(':') + 1))};
}

std::string to_string(Phase phase) {
  constexpr const char* kNames[] = {
      "prologue", "prologue2", "prologue3", "forward", "backward", "update"};
  return kNames[static_cast<size_t>(phase)];
}

std::string to_string(InputKind kind) {
  constexpr const char* kNames[] = {"parameter", "buffer", "batch", "scalar", "state", "received"};
  return kNames[static_cast<size_t>(kind)];
}

std::string to_string(OutputKind kind) {
  constexpr const char* kNames[] = {
      "loss", "metric", "gradient", "buffer", "parameter", "state", "sent"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t num_bytes(const TensorType& type, const std::vector<int64_t>& symbol_values) {
  int64_t bytes = bytes_per_element(type.dtype);
  for (const Size& size : type.shape) bytes = multiply(bytes, evaluate(size, symbol_values));
  return bytes;
}

}  // namespace medley
