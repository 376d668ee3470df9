#pragma once

// The short texts of a plan: the state of a value and the choice of an op, one per axis of the mesh
// joined by " x ". Knows their spelling only, not whether a dim, a label or a part exists.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace medley {

// "R", "P", "S(<dim>, <part>)" or "S(<dim>.<factor>, <part>)"; without a factor the leading one, 0.
struct StateText {
  enum class Kind : uint8_t { kReplicated, kPartialSum, kSharded };
  Kind kind = Kind::kReplicated;
  int dim = 0;
  int factor = 0;
  std::string part;  // of kSharded
  bool operator==(const StateText&) const = default;
};

// "replicate": the op is computed whole by every device.
// "linear {0}", "linear {0+1}": partial sums pass through, in these operands jointly.
// "<label> <part>", "<label>.<factor> <part>": the label of the op's rule is divided.
// "composite <label> <part>": the same, for a label whose statistics are then all-reduced.
// "*": whatever suits what it reads, as for an op that the plan does not name.
struct ChoiceText {
  enum class Kind : uint8_t { kReplicate, kLinear, kLabel, kComposite, kOpen };
  Kind kind = Kind::kReplicate;
  std::vector<int> group;  // operands, of kLinear
  std::string label;       // of kLabel and kComposite
  int factor = 0;
  std::string part;
  bool operator==(const ChoiceText&) const = default;
};

// Return one entry per axis; nothing if the text is spelled otherwise.
std::optional<std::vector<StateText>> parse_state_text(std::string_view text);
std::optional<std::vector<ChoiceText>> parse_choice_text(std::string_view text);
// The inverse.
std::string print(const std::vector<StateText>& state);
std::string print(const std::vector<ChoiceText>& choice);

// Names of parts and axes: a letter or "_", then letters, digits, "_" and "-"; not "x", which
// joins.
bool is_part_name(std::string_view text);

// What was expected where a text is spelled otherwise.
inline constexpr std::string_view kStateForms =
    "\"R\", \"P\", \"S(<dim>, <part>)\" or \"S(<dim>.<factor>, <part>)\" for each axis, joined by "
    "\" x \"";
inline constexpr std::string_view kChoiceForms =
    "\"replicate\", \"linear {<operands>}\", \"<label> <part>\", \"<label>.<factor> <part>\", "
    "\"composite <label> <part>\" or \"*\" for each axis, joined by \" x \"";

}  // namespace medley
