#pragma once

// The short texts of a plan: placement of a value and choice of an op, one per axis of the mesh
// joined by " x ". Knows their spelling only, not whether a dim, a label or a part exists.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace medley {

// "R", "P", "S(<dim>, <part>)" or "S(<dim>.<factor>, <part>)"; the default factor is 0, the leading
// one.
struct PlacementText {
  enum class Kind : uint8_t { kReplicated, kPartialSum, kSharded };
  Kind kind = Kind::kReplicated;
  int dim = 0;
  int factor = 0;
  std::string part;  // for kSharded
  bool operator==(const PlacementText&) const = default;
};

// "replicate": every device computes the whole op. "linear {0}", "linear {0+1}": partial sums pass
// through, in these operands jointly. "<label> <part>", "<label>.<factor> <part>": divides the
// label of the op's rule. "composite <label> <part>": divides a label whose statistics are then
// all-reduced. "*": follows its operands, like an op that the plan does not name.
struct ChoiceText {
  enum class Kind : uint8_t { kReplicate, kLinear, kLabel, kComposite, kOpen };
  Kind kind = Kind::kReplicate;
  std::vector<int> group;  // operands, of kLinear
  std::string label;       // for kLabel and kComposite
  int factor = 0;
  std::string part;
  bool operator==(const ChoiceText&) const = default;
};

// Return one entry per axis; nullopt for another spelling.
std::optional<std::vector<PlacementText>> parse_placement_text(std::string_view text);
std::optional<std::vector<ChoiceText>> parse_choice_text(std::string_view text);
// Print a text that parses back equal.
std::string print(const std::vector<PlacementText>& placement);
std::string print(const std::vector<ChoiceText>& choice);

// Returns whether `text` is a letter or "_", then letters, digits, "_" and "-", and not "x", the
// separator.
bool is_part_name(std::string_view text);

// Expected forms, for error messages.
inline constexpr std::string_view kPlacementForms =
    "\"R\", \"P\", \"S(<dim>, <part>)\" or \"S(<dim>.<factor>, <part>)\" for each axis, joined by "
    "\" x \"";
inline constexpr std::string_view kChoiceForms =
    "\"replicate\", \"linear {<operands>}\", \"<label> <part>\", \"<label>.<factor> <part>\", "
    "\"composite <label> <part>\" or \"*\" for each axis, joined by \" x \"";

}  // namespace medley
