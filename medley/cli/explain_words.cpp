#include "medley/cli/explain_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "medley/base/at.h"
#include "medley/sharding/choice.h"

namespace medley {
namespace {

// Returns "66.7 / 33.3 %", or "25 % x 4" for equal shares.
std::string shares_text(const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (std::ranges::all_of(shares, [&](double each) { return each == shares[0]; }))
    return fmt::format("{:.3g} % x {}", 100 * shares[0] / sum, shares.size());
  std::string out;
  for (double each : shares)
    out += fmt::format("{}{:.3g}", out.empty() ? "" : " / ", 100 * each / sum);
  return out + " %";
}

// Returns a part's share for each device: "24, 8", "66.7 / 33.3 %".
std::string lengths_text(const Plan& plan, const std::string& name) {
  if (name == kRows) return "by rows";
  if (name == kEven) return "evenly";
  for (const Part& part : plan.parts)
    if (part.name == name)
      return part.shares.empty() ? runs_text(part.lengths) : shares_text(part.shares);
  return "by a part that is not there";
}

std::string words(const Plan& plan, const PlacementText& placement) {
  switch (placement.kind) {
    case PlacementText::Kind::kReplicated:
      return "replicated";
    case PlacementText::Kind::kPartialSum:
      return "a partial sum";
    case PlacementText::Kind::kSharded:
      break;
  }
  const std::string factor =
      placement.factor > 0 ? fmt::format("factor {} of ", placement.factor) : "";
  return fmt::format(
      "{}dim {} sharded {}", factor, placement.dim, lengths_text(plan, placement.part));
}

std::string words(const Plan& plan, const ChoiceText& choice) {
  switch (choice.kind) {
    case ChoiceText::Kind::kReplicate:
      return "replicated: every device computes all of it";
    case ChoiceText::Kind::kOpen:
      return "as its inputs are";
    case ChoiceText::Kind::kLinear:
      return "adds to a partial sum";
    case ChoiceText::Kind::kLabel:
    case ChoiceText::Kind::kComposite:
      break;
  }
  const std::string factor = choice.factor > 0 ? fmt::format("factor {} of ", choice.factor) : "";
  return fmt::format("{}{} sharded {}{}",
                     factor,
                     choice.label,
                     lengths_text(plan, choice.part),
                     choice.kind == ChoiceText::Kind::kComposite ? ", statistics all-reduced" : "");
}

template <typename Text>
std::string joined(const Plan& plan, const std::optional<std::vector<Text>>& axes) {
  std::string out;
  for (const Text& axis : axes.value_or(std::vector<Text>{}))
    out += (out.empty() ? "" : "; ") + words(plan, axis);
  return out;
}

}  // namespace

std::string words(const Plan& plan, const std::optional<std::vector<PlacementText>>& axes) {
  return joined(plan, axes);
}

std::string words(const Plan& plan, const std::optional<std::vector<ChoiceText>>& axes) {
  return joined(plan, axes);
}

std::string runs_text(const std::vector<int64_t>& lengths) {
  std::string out;
  for (size_t i = 0; i < lengths.size();) {
    size_t end = i;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", lengths[i]);
    if (end - i > 1) out += fmt::format(" x {}", end - i);
    i = end;
  }
  return out;
}

std::string owner_words(const Plan& plan, const std::string& text) {
  if (text == kAllOwners) return "done by every pipeline";
  return fmt::format("divided {} over pipelines", lengths_text(plan, text));
}

std::string placement_text(const Completed& completed, ValueId value, const Placement& placement) {
  const auto& dims = completed.factors->values[at(value)];
  std::vector<PlacementText> texts;
  for (const AxisPlacement& axis : placement) {
    PlacementText text;
    if (axis.holding == Holding::kPartialSum) text.kind = PlacementText::Kind::kPartialSum;
    if (axis.holding == Holding::kPartialMax) return "partial maximum";
    if (axis.holding == Holding::kSharded) {
      text.kind = PlacementText::Kind::kSharded;
      text.part = completed.assignment.part_names[at(axis.part)];
      text.factor = axis.position;
      for (const auto& factors : dims) {
        if (text.factor < static_cast<int>(factors.size())) break;
        text.factor -= static_cast<int>(factors.size());
        ++text.dim;
      }
    }
    texts.push_back(std::move(text));
  }
  return print(texts);
}

std::string choices_text(const Completed& completed, OpId op) {
  std::string text;
  for (const Choice& choice : completed.assignment.choices[at(op)])
    text += (text.empty() ? "" : " x ") +
            to_string(*completed.factors, op, choice, completed.assignment.part_names);
  return text;
}

std::vector<Said> ops_said(const Completed& completed) {
  std::vector<Said> all;
  for (size_t i = 0; i < completed.prepared->graph.ops.size(); ++i)
    all.push_back({completed.prepared->names[i], choices_text(completed, static_cast<OpId>(i))});
  return all;
}

std::vector<Said> parameters_said(const Completed& completed) {
  std::vector<Said> all;
  for (const Input& input : completed.prepared->graph.inputs)
    if (input.kind == InputKind::kParameter)
      all.push_back(
          {input.name,
           placement_text(
               completed, input.value, completed.assignment.placements[at(input.value)])});
  return all;
}

}  // namespace medley
