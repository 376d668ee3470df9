#pragma once

// The first failure of a run, as all devices receive it.

#include <optional>
#include <string>

#include "medley/base/error.h"

namespace medley {

struct Failure {
  int generation = 0;
  std::optional<int> device = {};  // empty: several, named by the cause
  std::string call;                // "forward 2", "" outside calls
  std::string edge;                // the exchange, "" inside a segment
  std::string cause;
  Blame blame = Blame::kEnvironment;
  bool operator==(const Failure&) const = default;
};

std::string to_json(const Failure& failure);
// Returns JSON for readers without device numbers: names, "" for none, and the whole sentence.
// `told_by`: the device that has published it.
std::string to_job_json(const Failure& failure,
                        const std::string& device,
                        const std::string& told_by,
                        const std::string& sentence);
// Throws Error(kEnvironment), beginning with `place`, for foreign text.
Failure parse_failure(const std::string& text, const std::string& place);

}  // namespace medley
