#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace medley {

// Returns the number of drawn cases out of `all`: a fifth, or all if MEDLEY_ALL_SEEDS is 1 (set
// nightly by scripts/run_tests.py). Draws the first ones, so that failures repeat.
inline uint64_t seeds_of(uint64_t all) {
  const char* wanted = std::getenv("MEDLEY_ALL_SEEDS");
  return wanted && std::string(wanted) == "1" ? all : all / 5;
}

// Returns the value of an environment variable (scripts/run_tests.py), or `otherwise`.
inline uint64_t seeds_of(const char* variable, uint64_t otherwise) {
  const char* wanted = std::getenv(variable);
  return wanted ? std::stoull(wanted) : otherwise;
}

}  // namespace medley
