#include "medley/plan/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace medley {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A label of a rule may end with a prime: the output extent of a convolution.
bool is_label(std::string_view text) {
  while (!text.empty() && text.back() == '\'') text.remove_suffix(1);
  return !text.empty() && is_letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

// Parses numbers of dims, factors and operands: no sign, no leading zero.
std::optional<int> parse_index(std::string_view text) {
  if (text.empty() || text.size() > 6 || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!is_digit(text[0]) || error != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t at = text.find(separator);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + separator.size());
  }
}

// "<name>" or "<name>.<factor>".
struct Factored {
  std::string_view name;
  int factor = 0;
};
std::optional<Factored> parse_factored(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return Factored{text, 0};
  const auto factor = parse_index(text.substr(dot + 1));
  if (!factor) return std::nullopt;
  return Factored{text.substr(0, dot), *factor};
}

std::optional<PlacementText> parse_one_placement(std::string_view text) {
  if (text == "R") return PlacementText{};
  if (text == "P") return PlacementText{.kind = PlacementText::Kind::kPartialSum, .part = {}};
  if (!text.starts_with("S(") || !text.ends_with(")")) return std::nullopt;
  const auto pieces = split(text.substr(2, text.size() - 3), ", ");
  if (pieces.size() != 2 || !is_part_name(pieces[1])) return std::nullopt;
  const auto position = parse_factored(pieces[0]);
  if (!position) return std::nullopt;
  const auto dim = parse_index(position->name);
  if (!dim) return std::nullopt;
  return PlacementText{
      PlacementText::Kind::kSharded, *dim, position->factor, std::string(pieces[1])};
}

std::optional<ChoiceText> parse_linear(std::string_view group) {
  if (group.size() < 3 || group.front() != '{' || group.back() != '}') return std::nullopt;
  ChoiceText choice{.kind = ChoiceText::Kind::kLinear, .group = {}, .label = {}, .part = {}};
  for (std::string_view piece : split(group.substr(1, group.size() - 2), "+")) {
    const auto operand = parse_index(piece);
    if (!operand) return std::nullopt;
    choice.group.push_back(*operand);
  }
  return choice;
}

std::optional<ChoiceText> parse_one_choice(std::string_view text) {
  if (text == "replicate") return ChoiceText{};
  if (text == "*")
    return ChoiceText{.kind = ChoiceText::Kind::kOpen, .group = {}, .label = {}, .part = {}};
  if (text.starts_with("linear ")) return parse_linear(text.substr(7));
  ChoiceText choice{.kind = ChoiceText::Kind::kLabel, .group = {}, .label = {}, .part = {}};
  if (text.starts_with("composite ")) {
    choice.kind = ChoiceText::Kind::kComposite;
    text.remove_prefix(10);
  }
  const auto pieces = split(text, " ");
  if (pieces.size() != 2 || !is_part_name(pieces[1])) return std::nullopt;
  const auto label = parse_factored(pieces[0]);
  if (!label || !is_label(label->name)) return std::nullopt;
  choice.label = label->name;
  choice.factor = label->factor;
  choice.part = pieces[1];
  return choice;
}

template <typename Text>
std::optional<std::vector<Text>> parse_axes(std::string_view text,
                                            std::optional<Text> (*parse_one)(std::string_view)) {
  std::vector<Text> axes;
  for (std::string_view piece : split(text, " x ")) {
    auto one = parse_one(piece);
    if (!one) return std::nullopt;
    axes.push_back(std::move(*one));
  }
  return axes;
}

std::string print_factored(std::string_view name, int factor) {
  return factor == 0 ? std::string(name) : fmt::format("{}.{}", name, factor);
}

std::string print_one(const PlacementText& placement) {
  switch (placement.kind) {
    case PlacementText::Kind::kReplicated:
      return "R";
    case PlacementText::Kind::kPartialSum:
      return "P";
    case PlacementText::Kind::kSharded:
      break;
  }
  return fmt::format(
      "S({}, {})", print_factored(std::to_string(placement.dim), placement.factor), placement.part);
}

std::string print_one(const ChoiceText& choice) {
  switch (choice.kind) {
    case ChoiceText::Kind::kReplicate:
      return "replicate";
    case ChoiceText::Kind::kOpen:
      return "*";
    case ChoiceText::Kind::kLinear:
      return fmt::format("linear {{{}}}", fmt::join(choice.group, "+"));
    case ChoiceText::Kind::kLabel:
    case ChoiceText::Kind::kComposite:
      break;
  }
  return fmt::format("{}{} {}",
                     choice.kind == ChoiceText::Kind::kComposite ? "composite " : "",
                     print_factored(choice.label, choice.factor),
                     choice.part);
}

template <typename Text>
std::string print_axes(const std::vector<Text>& axes) {
  std::string out;
  for (const Text& axis : axes) out += (out.empty() ? "" : " x ") + print_one(axis);
  return out;
}

}  // namespace

bool is_part_name(std::string_view text) {
  return !text.empty() && text != "x" && is_letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return is_letter(c) || is_digit(c) || c == '-';
         });
}

std::optional<std::vector<PlacementText>> parse_placement_text(std::string_view text) {
  return parse_axes<PlacementText>(text, parse_one_placement);
}

std::optional<std::vector<ChoiceText>> parse_choice_text(std::string_view text) {
  return parse_axes<ChoiceText>(text, parse_one_choice);
}

std::string print(const std::vector<PlacementText>& placement) { return print_axes(placement); }
std::string print(const std::vector<ChoiceText>& choice) { return print_axes(choice); }

}  // namespace medley
