#pragma once

// What one thread has thrown, for others to throw. Not an exception: each throws one of its own.

#include <functional>
#include <optional>
#include <string>

#include "medley/base/error.h"

namespace medley {

struct Fault {
  Blame blame = Blame::kUs;
  std::string what;
};

// Calls `body`; returns what it has thrown, nothing if it has returned.
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
