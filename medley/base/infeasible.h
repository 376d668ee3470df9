#pragma once

#include <string>

namespace medley {

// No plan fits: the sentence that says what does not fit and by how much.
struct Infeasible {
  std::string reason;
};

}  // namespace medley
