#include "medley/graph/text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/sha256.h"
#include "medley/graph/quote.h"

namespace medley {
namespace {

void append_float(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "nan";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  const std::string_view digits(buffer, at(end - buffer));
  out += digits;
  if (digits.find_first_of(".en") == std::string_view::npos) out += ".0";
}

class Printer {
 public:
  // `ids`: the printed number of each value.
  Printer(const Graph& graph, const std::vector<ValueId>& ids, bool sources)
      : graph_(graph), ids_(ids), sources_(sources) {}

  std::string print() {
    out_ += "medley-graph 1\ngraph ";
    append_quoted(out_, graph_.name);
    out_ += "\nsymbols";
    for (const std::string& symbol : graph_.symbols) out_ += ' ' + symbol;
    out_ += '\n';
    for (const Input& input : graph_.inputs) statement(input);
    for (const Op& op : graph_.ops) statement(op);
    for (const Output& output : graph_.outputs) statement(output);
    return std::move(out_);
  }

 private:
  void statement(const Input& input) {
    id(input.value);
    out_ += " = " + to_string(input.kind) + ' ';
    append_quoted(out_, input.name);
    out_ += " : ";
    type(input.value);
    out_ += '\n';
  }

  void statement(const Op& op) {
    separated(op.results, [this](ValueId value) {
      if (value == kNone)
        out_ += '_';
      else
        id(value);
    });
    out_ += " = " + op.name + '(';
    separated(op.arguments, [this](const Argument& each) { argument(each); });
    out_ += ") : ";
    separated(op.results, [this](ValueId value) { type(value); });
    out_ += " @" + to_string(op.phase) + ' ';
    append_quoted(out_, op.module);
    if (sources_ && !op.source.empty()) {
      out_ += " at ";
      append_quoted(out_, op.source);
    }
    out_ += '\n';
  }

  void statement(const Output& output) {
    out_ += "output " + to_string(output.kind) + ' ';
    if (output.kind != OutputKind::kLoss) {
      append_quoted(out_, output.name);
      out_ += ' ';
    }
    id(output.value);
    out_ += '\n';
  }

  void argument(const Argument& argument) {
    std::visit([this](const auto& value) { item(value); }, argument);
  }

  void item(NoneArgument) { out_ += "none"; }
  void item(ValueArgument argument) {
    if (argument.value == kNone)
      out_ += "none";
    else
      id(argument.value);
  }
  void item(bool value) { out_ += value ? "true" : "false"; }
  void item(double value) { append_float(out_, value); }
  void item(DType dtype) { out_ += to_string(dtype); }
  void item(const std::string& text) { append_quoted(out_, text); }
  void item(const Size& size) {
    if (size.is_constant())
      fmt::format_to(std::back_inserter(out_), "{}", size.coefficient);
    else
      out_ += to_string(size, graph_.symbols);
  }
  void item(const std::vector<ValueArgument>& items) { list("values", items); }
  void item(const std::vector<Size>& items) { list("sizes", items); }
  void item(const std::vector<bool>& items) { list("bools", items); }
  void item(const std::vector<double>& items) { list("floats", items); }

  template <typename Items>
  void list(const char* kind, const Items& items) {
    if (items.empty()) out_ += kind;
    out_ += '[';
    separated(items, [this](const auto& each) { item(each); });
    out_ += ']';
  }

  template <typename Items, typename Each>
  void separated(const Items& items, Each each) {
    bool first = true;
    for (const auto& value : items) {
      if (!first) out_ += ", ";
      first = false;
      each(value);
    }
  }

  void id(ValueId value) {
    MEDLEY_CHECK(value >= 0 && at(value) < ids_.size());
    fmt::format_to(std::back_inserter(out_), "%{}", ids_[at(value)]);
  }

  void type(ValueId value) {
    if (value == kNone) {
      out_ += "none";
      return;
    }
    MEDLEY_CHECK(value >= 0 && at(value) < graph_.values.size());
    const TensorType& type = graph_.values[at(value)].type;
    out_ += to_string(type.dtype);
    out_ += '[';
    separated(type.shape, [this](const Size& size) { item(size); });
    out_ += ']';
  }

  const Graph& graph_;
  const std::vector<ValueId>& ids_;
  const bool sources_;
  std::string out_;
};

}  // namespace

std::string print(const Graph& graph) {
  std::vector<ValueId> ids(graph.values.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<ValueId>(i);
  return Printer(graph, ids, /*sources=*/true).print();
}

std::string hash(const Graph& graph) {
  std::vector<ValueId> ids(graph.values.size(), kNone);
  ValueId next = 0;
  const auto define = [&](ValueId value) {
    if (value == kNone) return;
    MEDLEY_CHECK(value >= 0 && at(value) < ids.size());
    ids[at(value)] = next++;
  };
  for (const Input& input : graph.inputs) define(input.value);
  for (const Op& op : graph.ops)
    for (ValueId result : op.results) define(result);
  return sha256_hex(Printer(graph, ids, /*sources=*/false).print());
}

}  // namespace medley
