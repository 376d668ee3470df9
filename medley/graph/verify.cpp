#include "medley/graph/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_part(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '.'; }

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), defined_(graph.values.size()) {}

  void verify() {
    symbols();
    for (const Input& input : graph_.inputs) check(input);
    for (size_t i = 0; i < graph_.ops.size(); ++i) check(graph_.ops[i], static_cast<OpId>(i));
    for (size_t i = 0; i < defined_.size(); ++i)
      if (!defined_[i]) fail(fmt::format("value %{}", i), "must be defined");
    for (const Output& output : graph_.outputs) check(output);
    if (!outputs_.contains({OutputKind::kLoss, ""}) && !sends_ && !measures_)
      fail("outputs", "must have a loss");
  }

 private:
  [[noreturn]] void fail(std::string_view place, std::string_view what) const {
    throw Error(Blame::kUs, fmt::format("graph \"{}\": {}: {}", graph_.name, place, what));
  }

  [[noreturn]] void fail(OpId id, std::string_view what) const {
    const Op& op = graph_.ops[at(id)];
    std::string place = fmt::format("op {} {} in \"{}\"", id, op.name, op.module);
    if (!op.source.empty()) place += " at " + op.source;
    fail(place, what);
  }

  void symbols() const {
    std::set<std::string_view> seen;
    for (const std::string& symbol : graph_.symbols) {
      if (!is_symbol_name(symbol)) fail("symbols", fmt::format("not a name: \"{}\"", symbol));
      if (!seen.insert(symbol).second) fail("symbols", fmt::format("twice: {}", symbol));
    }
  }

  void check(const Input& input) {
    const std::string place = fmt::format("{} \"{}\"", to_string(input.kind), input.name);
    if (!inputs_.emplace(std::pair(input.kind, std::string_view(input.name)), input.value).second)
      fail(place, "the name must be unique within the kind");
    const std::string fault = define(input.value, kNone, 0);
    if (!fault.empty()) fail(place, fault);
  }

  void check(const Op& op, OpId id) {
    if (!is_op_name(op.name)) fail(id, "the name must be namespace.op.overload");
    if (op.results.empty()) fail(id, "must have a result");
    for (const Argument& argument : op.arguments) {
      const std::string fault = check(argument);
      if (!fault.empty()) fail(id, fault);
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (op.results[i] == kNone) continue;
      const std::string fault = define(op.results[i], id, static_cast<int32_t>(i));
      if (!fault.empty()) fail(id, fault);
    }
  }

  std::string check(const Argument& argument) const {
    if (const auto* value = std::get_if<ValueArgument>(&argument)) {
      if (value->value == kNone) return "an absent operand outside a list must be none";
      return check_operand(value->value);
    }
    if (const auto* values = std::get_if<std::vector<ValueArgument>>(&argument)) {
      for (const ValueArgument& each : *values) {
        std::string fault = each.value == kNone ? "" : check_operand(each.value);
        if (!fault.empty()) return fault;
      }
    } else if (const auto* size = std::get_if<Size>(&argument)) {
      return check(*size);
    } else if (const auto* sizes = std::get_if<std::vector<Size>>(&argument)) {
      for (const Size& each : *sizes) {
        std::string fault = check(each);
        if (!fault.empty()) return fault;
      }
    }
    return "";
  }

  std::string check_operand(ValueId id) const {
    if (!in_range(id)) return fmt::format("operand out of range: {}", id);
    if (!defined_[at(id)]) return fmt::format("operand must be defined before its use: %{}", id);
    return "";
  }

  std::string check(const Size& size) const {
    if (size.symbols.size() > kMaxFactors)
      return fmt::format(
          "a size must have at most {} symbols: {}", kMaxFactors, size.symbols.size());
    if (size.coefficient == 0 && !size.symbols.empty())
      return "a size of zero must have no symbols";
    for (Symbol symbol : size.symbols)
      if (symbol < 0 || at(symbol) >= graph_.symbols.size())
        return fmt::format("symbol out of range: {}", symbol);
    if (!std::is_sorted(size.symbols.begin(), size.symbols.end()))
      return fmt::format("symbols must be sorted: {}", to_string(size, graph_.symbols));
    return "";
  }

  std::string define(ValueId id, OpId producer, int32_t result) {
    if (!in_range(id)) return fmt::format("value out of range: {}", id);
    const auto index = at(id);
    if (defined_[index]) return fmt::format("value must be defined once: %{}", id);
    defined_[index] = true;
    const Value& value = graph_.values[index];
    if (value.producer != producer || value.result != result)
      return fmt::format("%{} must be linked to result {} of op {}, not to {} of {}",
                         id,
                         result,
                         producer,
                         value.result,
                         value.producer);
    if (value.type.shape.size() > kMaxRank)
      return fmt::format("%{} must have at most {} dims", id, kMaxRank);
    for (const Size& size : value.type.shape) {
      const std::string fault = check(size);
      if (!fault.empty()) return fmt::format("%{}: {}", id, fault);
      if (size.coefficient < 0)
        return fmt::format(
            "%{}: a size must not be negative: {}", id, to_string(size, graph_.symbols));
    }
    return "";
  }

  void check(const Output& output) {
    const std::string place = fmt::format("output {} \"{}\"", to_string(output.kind), output.name);
    if (!in_range(output.value)) fail(place, fmt::format("out of range: {}", output.value));
    if (!outputs_.emplace(output.kind, output.name).second) fail(place, "must be there once");
    const TensorType& type = graph_.values[at(output.value)].type;
    if (output.kind == OutputKind::kLoss) {
      if (!output.name.empty()) fail(place, "a loss has no name");
      if (!is_floating(type.dtype) || !type.shape.empty()) fail(place, "must be a floating scalar");
      return;
    }
    if (output.kind == OutputKind::kMetric) {
      if (output.name.empty()) fail(place, "must have a name");
      if (!is_floating(type.dtype) && !has_rows(type))
        fail(place, "must be floating, or have the rows of the batch");
      size_t symbols = 0;
      for (const Size& size : type.shape) symbols += size.symbols.size();
      if (symbols > 1) fail(place, "must have the rows of the batch in one dim at most");
      check_carried(output.name, type, place);
      measures_ = true;
      return;
    }
    if (output.kind == OutputKind::kSent) {
      if (output.name.empty()) fail(place, "must have a name");
      sends_ = true;
      return;
    }
    const auto input = inputs_.find({input_of(output.kind), output.name});
    if (input == inputs_.end())
      fail(place, fmt::format("there is no such {}", to_string(input_of(output.kind))));
    if (graph_.values[at(input->second)].type != type)
      fail(place, fmt::format("must have the type of the {}", to_string(input_of(output.kind))));
  }

  void check_carried(std::string_view name, const TensorType& type, const std::string& place) {
    if (!is_carried(name)) return;
    const auto input = inputs_.find({InputKind::kBatch, name.substr(kCarried.size())});
    if (input != inputs_.end() && graph_.values[at(input->second)].type != type)
      fail(place, "must have the type of the batch input");
    if (!has_rows(type)) fail(place, "must have the rows of the batch");
  }

  static InputKind input_of(OutputKind kind) {
    if (kind == OutputKind::kBuffer) return InputKind::kBuffer;
    if (kind == OutputKind::kState) return InputKind::kState;
    return InputKind::kParameter;
  }

  bool in_range(ValueId id) const { return id >= 0 && at(id) < graph_.values.size(); }

  const Graph& graph_;
  std::vector<bool> defined_;
  std::map<std::pair<InputKind, std::string_view>, ValueId> inputs_;
  std::set<std::pair<OutputKind, std::string_view>> outputs_;
  bool sends_ = false, measures_ = false;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).verify(); }

bool is_symbol_name(std::string_view name) {
  constexpr std::array<std::string_view, 9> kReserved{
      "none", "true", "false", "inf", "nan", "values", "sizes", "bools", "floats"};
  if (name.empty() || !is_letter(name[0]) || parse_dtype(name)) return false;
  if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) return false;
  return std::all_of(name.begin(), name.end(), is_part);
}

bool is_op_name(std::string_view name) {
  if (name.empty() || !is_letter(name[0]) || name.back() == '.') return false;
  if (name.find("..") != std::string_view::npos) return false;
  if (std::count(name.begin(), name.end(), '.') < 2) return false;
  return std::all_of(name.begin(), name.end(), is_part);
}

}  // namespace medley
