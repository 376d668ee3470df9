#pragma once

// The first failure of a run, as all devices hear of it.

#include <string>

namespace medley {

struct Failure {
  int epoch = 0;
  int device = 0;
  std::string call;  // "forward 2", "" outside calls
  std::string edge;  // the exchange, "" inside a segment
  std::string cause;
  bool operator==(const Failure&) const = default;
};

std::string to_json(const Failure& failure);
// Throws Error(kEnvironment), beginning with `place`, where somebody else has written.
Failure parse_failure(const std::string& text, const std::string& place);

}  // namespace medley
