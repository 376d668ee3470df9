#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace medley {

// How many of `all` random cases a test draws: a fifth, and all of them where MEDLEY_ALL_SEEDS is 1
// (scripts/run_tests.py sets it nightly). The first ones, so that a failure is the same again.
inline uint64_t seeds_of(uint64_t all) {
  const char* wanted = std::getenv("MEDLEY_ALL_SEEDS");
  return wanted && std::string(wanted) == "1" ? all : all / 5;
}

// As an environment variable says (scripts/run_tests.py), so many if it is not set.
inline uint64_t seeds_of(const char* variable, uint64_t otherwise) {
  const char* wanted = std::getenv(variable);
  return wanted ? std::stoull(wanted) : otherwise;
}

}  // namespace medley
