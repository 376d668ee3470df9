#pragma once

// Returns the exit code after an Error: 1 for us, 2 for the caller, 3 for the environment.

#include "medley/base/error.h"

namespace medley {

constexpr int exit_code(Blame blame) {
  switch (blame) {
    case Blame::kUs:
      return 1;
    case Blame::kCaller:
      return 2;
    case Blame::kEnvironment:
      return 3;
  }
  return 1;
}

}  // namespace medley
