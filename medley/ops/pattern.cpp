#include "medley/ops/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "medley/base/error.h"

namespace medley {
namespace {

bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool continues_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Pattern parse() {
    pattern_.operands = tensors();
    if (!accept("->")) fail("'->'");
    pattern_.results = tensors();
    skip_spaces();
    if (at_ != text_.size()) fail("the end");
    check_absent();
    return std::move(pattern_);
  }

 private:
  std::vector<PatternTensor> tensors() {
    std::vector<PatternTensor> all;
    skip_spaces();
    if (starts("->")) return all;  // a factory
    do {
      all.push_back(tensor());
    } while (accept(","));
    return all;
  }

  PatternTensor tensor() {
    PatternTensor one;
    one.shape_only = accept("#");
    while (!ends_tensor()) {
      if (accept("_")) {
        one.any = true;
      } else {
        one.dims.push_back(dim());
      }
    }
    if (one.any && !one.dims.empty()) fail("no dim beside '_'");
    if (std::ranges::count(one.dims, PatternDim::Kind::kDots, &PatternDim::kind) > 1)
      fail("one '..' per tensor");
    one.optional = accept("?");
    for (;;) {
      if (accept("=")) {
        one.absent.emplace_back(name(), Absent::kUnaffected);
      } else if (accept("^")) {
        one.absent.emplace_back(name(), Absent::kMax);
      } else {
        return one;
      }
    }
  }

  PatternDim dim() {
    PatternDim result;
    if (accept("(")) {
      while (!accept(")")) label(result);
      if (result.labels.empty()) fail("a label");
      result.broadcast = accept("&");
    } else if (accept("1")) {
      result.kind = PatternDim::Kind::kOne;
    } else if (starts("..")) {
      dots("..", result);
    } else {
      const std::string first = name();
      if (starts("..")) {
        dots(first, result);
      } else {
        result.labels.push_back(first);
        marks(first, result);
      }
    }
    return result;
  }

  void label(PatternDim& result) {
    result.labels.push_back(name());
    marks(result.labels.back(), result);
  }

  void dots(const std::string& label_name, PatternDim& result) {
    accept("..");
    result.kind = PatternDim::Kind::kDots;
    result.labels.push_back(label_name);
    result.broadcast = true;
    marks(label_name, result);
  }

  void marks(const std::string& label_name, PatternDim& result) {
    auto found = std::ranges::find(pattern_.labels, label_name, &PatternLabel::name);
    if (found == pattern_.labels.end())
      found = pattern_.labels.insert(pattern_.labels.end(), {label_name});
    for (; at_ < text_.size(); ++at_) {
      switch (text_[at_]) {
        case '!':
          found->locked = true;
          break;
        case '~':
          found->select = true;
          break;
        case '%':
          found->composite = true;
          break;
        case '&':
          result.broadcast = true;
          break;
        default:
          return;
      }
    }
  }

  std::string name() {
    skip_spaces();
    if (at_ == text_.size() || !starts_name(text_[at_])) fail("a label");
    const size_t begin = at_;
    while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  void check_absent() {
    for (const PatternTensor& result : pattern_.results)
      for (const auto& [label_name, absent] : result.absent)
        if (std::ranges::find(pattern_.labels, label_name, &PatternLabel::name) ==
            pattern_.labels.end())
          fail(fmt::format("a label of the operands instead of {}", label_name));
  }

  bool ends_tensor() {
    skip_spaces();
    return at_ == text_.size() || starts("->") ||
           std::string_view(",?=^").find(text_[at_]) != std::string_view::npos;
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool starts(std::string_view token) const { return text_.substr(at_).starts_with(token); }
  bool accept(std::string_view token) {
    skip_spaces();
    if (!starts(token)) return false;
    at_ += token.size();
    return true;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(Blame::kUs,
                fmt::format("rule \"{}\": column {}: expected {}", text_, at_ + 1, expected));
  }

  std::string_view text_;
  size_t at_ = 0;
  Pattern pattern_;
};

}  // namespace

Pattern parse_pattern(std::string_view text) { return Parser(text).parse(); }

std::vector<std::vector<int>> parse_linear(std::string_view text) {
  std::vector<std::vector<int>> groups;
  enum { kOutside, kWantsNumber, kInNumber } state = kOutside;
  for (char c : text) {
    if (state == kOutside && c == '{') {
      groups.emplace_back();
      state = kWantsNumber;
    } else if (state == kWantsNumber && c >= '0' && c <= '9') {
      groups.back().push_back(c - '0');
      state = kInNumber;
    } else if (state == kInNumber && c >= '0' && c <= '9') {
      groups.back().back() = groups.back().back() * 10 + (c - '0');
    } else if (state == kInNumber && c == '+') {
      state = kWantsNumber;
    } else if (state == kInNumber && c == '}') {
      state = kOutside;
    } else {
      throw Error(Blame::kUs, fmt::format("linear \"{}\": expected \"{{0}}{{1+2}}\"", text));
    }
  }
  if (state != kOutside) throw Error(Blame::kUs, fmt::format("linear \"{}\": expected }}", text));
  return groups;
}

}  // namespace medley
