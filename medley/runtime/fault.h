#pragma once

// A thread's failure, for others to throw. Not an exception: each throws its own.

#include <functional>
#include <optional>
#include <string>

#include "medley/base/error.h"

namespace medley {

struct Fault {
  Blame blame = Blame::kUs;
  std::string what;
};

// Returns what `body` throws, or nothing.
inline std::optional<Fault> fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return Fault{error.blame(), error.what()};
  } catch (const std::exception& error) {
    return Fault{Blame::kUs, error.what()};
  }
  return std::nullopt;
}

}  // namespace medley
