#pragma once

#include <string>

namespace medley {

// The reason why no plan fits.
struct Infeasible {
  std::string reason;     // one sentence: the resource that lacks, and the amount
  std::string details{};  // further lines, with their indents
  std::string advice{};   // the smallest change with which a plan would fit
};

// Returns all texts, in lines.
inline std::string to_string(const Infeasible& no) {
  return no.reason + no.details + (no.advice.empty() ? "" : "\n  " + no.advice);
}

}  // namespace medley
