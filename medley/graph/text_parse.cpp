#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <unordered_map>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/line_reader.h"
#include "medley/graph/text.h"
#include "medley/graph/verify.h"

namespace medley {
namespace {

constexpr size_t kMaxText = size_t{1} << 28;
// Least length of a definition, which bounds the ids of a text.
constexpr size_t kMinDefinition = 8;

// Requires: the kinds up to `last` have words.
template <typename Kind>
std::optional<Kind> parse_kind(std::string_view word, Kind last) {
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (word == to_string(static_cast<Kind>(i))) return static_cast<Kind>(i);
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file)
      : text_(text),
        file_(file),
        max_ids_(static_cast<int64_t>(text.size() / kMinDefinition) + 1) {}

  Graph parse() {
    if (text_.size() > kMaxText)
      throw Error(
          Blame::kCaller,
          fmt::format("{}:1: found {} bytes, expected at most {}", file_, text_.size(), kMaxText));
    for (size_t start = 0; start < text_.size();) {
      const size_t end = std::min(text_.find('\n', start), text_.size());
      ++line_;
      LineReader in(file_, line_, text_.substr(start, end - start));
      if (in.peek() != '\0' && in.peek() != '#') statement(in);
      start = end + 1;
    }
    finish();
    return std::move(graph_);
  }

 private:
  enum Section { kVersion, kName, kSymbols, kInputs, kOps, kOutputs };

  void statement(LineReader& in) {
    switch (section_) {
      case kVersion:
        return version(in);
      case kName:
        return name(in);
      case kSymbols:
        return symbols(in);
      default:
        break;
    }
    if (in.peek() == '%' || in.peek() == '_') return definition(in);
    if (in.peek_word() != "output") in.fail("'%', '_' or 'output'");
    output(in);
  }

  void version(LineReader& in) {
    in.expect_word("medley-graph");
    if (in.peek_word() != "1") in.fail("version 1");
    in.word();
    in.expect_end();
    section_ = kName;
  }

  void name(LineReader& in) {
    in.expect_word("graph");
    graph_.name = in.quoted("the name of the graph in quotes");
    in.expect_end();
    section_ = kSymbols;
  }

  void symbols(LineReader& in) {
    in.expect_word("symbols");
    while (in.peek() != '\0') {
      const std::string_view word = in.peek_word();
      if (!is_symbol_name(word)) in.fail("the name of a symbol");
      const auto index = static_cast<Symbol>(graph_.symbols.size());
      if (!symbol_of_.emplace(word, index).second) in.fail("each symbol once");
      graph_.symbols.emplace_back(in.word());
    }
    section_ = kInputs;
  }

  // An input or an op: "<results> = <kind or op> ...".
  void definition(LineReader& in) {
    std::vector<ValueId> results;
    do {
      if (in.peek_word() == "_") {
        in.word();
        results.push_back(kNone);
      } else {
        in.expect('%');
        results.push_back(fresh_id(in));
      }
    } while (in.accept(','));
    in.expect('=');
    const auto kind = parse_kind(in.peek_word(), InputKind::kReceived);
    if (!kind) return op(in, std::move(results));
    if (section_ > kInputs) in.fail("inputs before ops");
    if (results.size() != 1 || results[0] == kNone) in.fail("one value for an input");
    in.word();
    Input input{*kind, in.quoted("the name of the input in quotes"), results[0]};
    if (input.kind == InputKind::kState) input.role = role_of_state(input.name);
    in.expect(':');
    define(results[0], type(in), kNone, 0);
    in.expect_end();
    graph_.inputs.push_back(std::move(input));
  }

  void op(LineReader& in, std::vector<ValueId> results) {
    if (section_ > kOps) in.fail("ops before outputs");
    section_ = kOps;
    Op op;
    op.name = in.peek_word();
    if (!is_op_name(op.name)) in.fail("an input kind or namespace.op.overload");
    in.word();
    in.expect('(');
    if (!in.accept(')')) {
      do op.arguments.push_back(argument(in));
      while (in.accept(','));
      in.expect(')');
    }
    in.expect(':');
    std::vector<TensorType> types(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (i > 0) in.expect(',');
      if (results[i] == kNone)
        in.expect_word("none");
      else
        types[i] = type(in);
    }
    place(in, op);
    // Defined only now, so an op cannot read its own result.
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == kNone) continue;
      if (defined(results[i])) in.fail(fmt::format("'%{}'", results[i]), "a new value");
      const auto producer = static_cast<OpId>(graph_.ops.size());
      define(results[i], std::move(types[i]), producer, static_cast<int32_t>(i));
    }
    op.results = std::move(results);
    graph_.ops.push_back(std::move(op));
  }

  // "@forward "module" at "source"".
  void place(LineReader& in, Op& op) {
    in.expect('@');
    const auto phase = parse_kind(in.peek_word(), Phase::kUpdate);
    if (!phase) in.fail("a phase: prologue, forward, backward or update");
    in.word();
    op.phase = *phase;
    op.module = in.quoted("the path of the module in quotes");
    if (in.peek_word() == "at") {
      in.word();
      op.source = in.quoted("the source line in quotes");
      if (op.source.empty()) in.fail("an empty source", "a source or no 'at'");
    }
    in.expect_end();
  }

  void output(LineReader& in) {
    section_ = kOutputs;
    in.word();
    const auto kind = parse_kind(in.peek_word(), OutputKind::kSent);
    if (!kind) in.fail("loss, metric, gradient, buffer, parameter or state");
    in.word();
    std::string name;
    if (*kind != OutputKind::kLoss) name = in.quoted("the name of the output in quotes");
    const ValueId value = known_id(in);
    in.expect_end();
    graph_.outputs.push_back({*kind, std::move(name), value});
  }

  TensorType type(LineReader& in) {
    const auto dtype = parse_dtype(in.peek_word());
    if (!dtype) in.fail("a dtype");
    in.word();
    TensorType type{*dtype, {}};
    in.expect('[');
    if (in.accept(']')) return type;
    do {
      if (type.shape.size() == kMaxRank) in.fail(fmt::format("at most {} dims", kMaxRank));
      type.shape.push_back(size(in));
      if (type.shape.back().coefficient < 0) in.fail("a negative size", "sizes of zero or more");
    } while (in.accept(','));
    in.expect(']');
    return type;
  }

  Size size(LineReader& in) {
    Size size(1);
    while (true) {
      const std::string_view word = in.peek_word();
      const auto symbol = symbol_of_.find(word);
      if (symbol == symbol_of_.end()) break;
      if (size.symbols.size() == kMaxFactors)
        in.fail(fmt::format("a product of at most {} symbols", kMaxFactors));
      if (!size.symbols.empty() && symbol->second < size.symbols.back())
        in.fail("symbols in the order of the 'symbols' line");
      size.symbols.push_back(symbol->second);
      in.word();
      if (!in.accept('*')) return size;
    }
    if (!read_integer(in.peek_word(), size.coefficient))
      in.fail("an integer of 64 bits or a symbol of the graph");
    if (!size.symbols.empty() && (size.coefficient == 0 || size.coefficient == 1))
      in.fail("a coefficient other than 0 and 1");
    in.word();
    if (in.peek() == '*') in.fail("symbols before their coefficient");
    return size;
  }

  Argument argument(LineReader& in) {
    switch (in.peek()) {
      case '%':
        return ValueArgument{known_id(in)};
      case '"':
        return in.quoted("a string that ends");
      case '[':
        return list(in);
      default:
        break;
    }
    const std::string_view word = in.peek_word();
    if (word == "none") return in.word(), NoneArgument{};
    if (word == "true" || word == "false") return in.word() == "true";
    if (const auto dtype = parse_dtype(word)) return in.word(), *dtype;
    if (word == "values") return empty_list<ValueArgument>(in);
    if (word == "sizes") return empty_list<Size>(in);
    if (word == "bools") return empty_list<bool>(in);
    if (word == "floats") return empty_list<double>(in);
    if (is_float(word)) return float_number(in);
    if (word.empty()) in.fail("an argument");
    return size(in);
  }

  template <typename Item>
  Argument empty_list(LineReader& in) {
    in.word();
    in.expect('[');
    in.expect(']');
    return std::vector<Item>{};
  }

  // Reads a list that is not empty; its first item gives the type.
  Argument list(LineReader& in) {
    in.expect('[');
    const std::string_view word = in.peek_word();
    if (in.peek() == ']')
      in.fail("an item; an empty list is sizes[], values[], floats[] or bools[]");
    if (in.peek() == '%' || word == "none")
      return items<ValueArgument>(in, [this](LineReader& each) { return value_or_none(each); });
    if (word == "true" || word == "false")
      return items<bool>(in, [](LineReader& each) {
        const std::string_view item = each.peek_word();
        if (item != "true" && item != "false") each.fail("true or false");
        return each.word() == "true";
      });
    if (is_float(word))
      return items<double>(in, [](LineReader& each) { return float_number(each); });
    return items<Size>(in, [this](LineReader& each) { return size(each); });
  }

  template <typename Item, typename Read>
  static std::vector<Item> items(LineReader& in, Read read) {
    std::vector<Item> items;
    do items.push_back(read(in));
    while (in.accept(','));
    in.expect(']');
    return items;
  }

  ValueArgument value_or_none(LineReader& in) {
    if (in.peek() == '%') return {known_id(in)};
    in.expect_word("none");
    return {};
  }

  static bool is_float(std::string_view word) {
    if (word == "inf" || word == "-inf" || word == "nan") return true;
    return !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9')) &&
           word.find_first_of(".en") != std::string_view::npos;
  }

  static double float_number(LineReader& in) {
    const std::string_view word = in.peek_word();
    double value = 0;
    if (!is_float(word) || !read_float(word, value)) in.fail("a float, such as 1.0, 1e-05 or inf");
    in.word();
    return value;
  }

  ValueId fresh_id(LineReader& in) {
    const auto id = static_cast<ValueId>(in.index(max_ids_, "the number of a value"));
    if (defined(id)) in.fail(fmt::format("'%{}' again", id), "a new value");
    return id;
  }

  ValueId known_id(LineReader& in) {
    in.expect('%');
    const auto id = static_cast<ValueId>(in.index(max_ids_, "the number of a value"));
    if (!defined(id)) in.fail(fmt::format("'%{}'", id), "a value defined above");
    return id;
  }

  bool defined(ValueId id) const { return at(id) < defined_.size() && defined_[at(id)]; }

  void define(ValueId id, TensorType type, OpId producer, int32_t result) {
    const auto index = at(id);
    if (index >= graph_.values.size()) {
      graph_.values.resize(index + 1);
      defined_.resize(index + 1);
    }
    graph_.values[index] = {std::move(type), producer, result};
    defined_[index] = true;
  }

  void finish() {
    LineReader end(file_, line_, "");
    if (section_ == kVersion) end.fail("the end of the file", "'medley-graph 1'");
    if (section_ == kName) end.fail("the end of the file", "'graph'");
    if (section_ == kSymbols) end.fail("the end of the file", "'symbols'");
    for (size_t id = 0; id < defined_.size(); ++id)
      if (!defined_[id])
        end.fail("the end of the file", fmt::format("a definition of '%{}' before it", id));
  }

  std::string_view text_;
  std::string_view file_;
  int64_t max_ids_;
  int64_t line_ = 0;
  Section section_ = kVersion;
  Graph graph_;
  std::vector<bool> defined_;
  std::unordered_map<std::string_view, Symbol> symbol_of_;
};

}  // namespace

Graph parse_graph(std::string_view text, std::string_view file) {
  return Parser(text, file).parse();
}

}  // namespace medley
