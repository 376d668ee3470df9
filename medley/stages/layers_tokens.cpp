#include "medley/stages/layers_tokens.h"
#include "medley/base/at.h"

#include <bit>
#include <string_view>

namespace medley {
namespace {

// A site of random numbers is unique: dropout(x, rng, p, site, ..), random(rng, distribution, site,
// ..).
size_t site_argument(const Op& op) {
  if (op.name == "medley.random.default") return 2;
  return short_name(op).starts_with("dropout") ? 3 : op.arguments.size();
}

class Tokenizer {
 public:
  Tokenizer(const Graph& graph, const Positions& positions)
      : graph_(graph), positions_(positions), text_(graph.values.size(), 0) {}

  OpTokens run() {
    for (const Input& input : graph_.inputs) {
      Token token = mix(kInput, static_cast<Token>(input.kind));
      // Batch tensors are distinguished; parameters differ between blocks.
      if (input.kind != InputKind::kParameter && input.kind != InputKind::kBuffer)
        token = mix(token, of(input.name));
      text_[at(input.value)] = mix(token, of(type_of(graph_, input.value)));
    }
    OpTokens tokens;
    tokens.token.assign(graph_.ops.size(), 0);
    tokens.sources.resize(graph_.ops.size());
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      sources_.clear();
      const Token token = of(graph_.ops[i]);
      const bool once = positions_.presence[i] == Presence::kOnce;
      for (ValueId value : graph_.ops[i].results) {
        if (value == kNone) continue;
        const Token result = static_cast<Token>(graph_.values[at(value)].result);
        // Readers of values computed once use only their type.
        text_[at(value)] = once ? mix(kMade, of(type_of(graph_, value))) : mix(token, result);
      }
      if (!once) continue;
      tokens.token[i] = token;
      tokens.sources[i] = sources_;
    }
    return tokens;
  }

 private:
  static constexpr Token kInput = 11, kMade = 13, kAbsent = 17, kTensor = 19;

  static Token of(std::string_view text) {
    Token token = 1469598103934665603u;
    for (char c : text) token = (token ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return token;
  }

  static Token of(const Size& size) {
    Token token = static_cast<Token>(size.coefficient);
    for (Symbol symbol : size.symbols) token = mix(token, static_cast<Token>(symbol) + 1);
    return token;
  }

  static Token of(const TensorType& type) {
    Token token = static_cast<Token>(type.dtype);
    for (const Size& size : type.shape) token = mix(token, of(size));
    return token;
  }

  Token of(const ValueArgument& argument) {
    if (argument.value == kNone) return kAbsent;
    const ValueId root = positions_.root[at(argument.value)];
    const OpId producer = graph_.values[at(root)].producer;
    if (producer != kNone && positions_.presence[at(producer)] == Presence::kOnce)
      sources_.push_back(root);
    return mix(kTensor, text_[at(argument.value)]);
  }

  template <typename T>
  Token of(const std::vector<T>& list) {
    Token token = list.size();
    for (const auto& each : list) token = mix(token, of(T(each)));
    return token;
  }

  static Token of(NoneArgument) { return kAbsent; }
  static Token of(bool flag) { return flag ? 23 : 29; }
  static Token of(double number) { return std::bit_cast<Token>(number); }
  static Token of(DType dtype) { return mix(31, static_cast<Token>(dtype)); }
  static Token of(const std::string& text) { return of(std::string_view(text)); }

  Token of(const Op& op) {
    Token token = mix(of(op.name), static_cast<Token>(op.phase));
    const size_t site = site_argument(op);
    for (size_t i = 0; i < op.arguments.size(); ++i)
      if (i != site)
        token = mix(token, std::visit([&](const auto& each) { return of(each); }, op.arguments[i]));
    for (ValueId value : op.results)
      token = mix(token, value == kNone ? kAbsent : of(type_of(graph_, value)));
    return token;
  }

  const Graph& graph_;
  const Positions& positions_;
  std::vector<Token> text_;  // [value] as part of a reader's token
  std::vector<ValueId> sources_;
};

}  // namespace

// Returns splitmix64 of both.
Token mix(Token a, Token b) {
  Token z = a + 0x9e3779b97f4a7c15u + (b ^ (b >> 31)) * 0xff51afd7ed558ccdu;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

OpTokens op_tokens(const Graph& graph, const Positions& positions) {
  return Tokenizer(graph, positions).run();
}

}  // namespace medley
