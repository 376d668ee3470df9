#pragma once

#include <string>

namespace medley {

// No plan fits.
struct Infeasible {
  std::string reason;     // the sentence that says what does not fit and by how much
  std::string details{};  // further lines, each with its indent
  std::string advice{};   // the smallest change with which a plan would fit
};

// Returns all of it, in lines.
inline std::string to_string(const Infeasible& no) {
  return no.reason + no.details + (no.advice.empty() ? "" : "\n  " + no.advice);
}

}  // namespace medley
