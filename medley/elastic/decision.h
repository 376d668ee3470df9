#pragma once

// After a failure: the last step that all survivors complete, and each one's way to it.
//
//   all before the commit of step s           keep s - 1    s is repeated
//   some after the commit                     finish s      the others get its result
//   likewise, and new parameters spread       keep s - 1    s is undone
//
// The commit (program/commit.h) completes on a device only after every device has contributed. A
// device before it therefore lacks only its result. Knows no tensors and no messages.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "medley/runtime/interpreter.h"

namespace medley {

// A survivor's report on the last step that it has begun.
struct StepLeft {
  std::string device;
  int64_t step = -1;  // -1: it has begun none
  Reached reached = Reached::kDone;
  // The result of the last commit that it has passed.
  std::optional<double> committed{};
  bool commits = true;   // it takes part in commits
  bool spreads = false;  // it needs others to end a step after its commit
  int back = 0;          // increases whenever it returns to an older state; 0: never
  int loads = 0;         // checkpoints that the script has loaded
  bool operator==(const StepLeft&) const = default;
};

struct Decision {
  int64_t step = -1;                  // completed by all afterwards
  std::optional<double> committed{};  // for survivors that have to finish it
  bool operator==(const Decision&) const = default;
};

// Returns the decision, or the reason why survivors cannot resume from their state.
std::variant<Decision, std::string> decide(const std::vector<StepLeft>& survivors);

// A survivor's way to the decision.
struct Catching {
  bool finish = false;  // the rest of its step
  int undo = 0;         // steps
  bool operator==(const Catching&) const = default;
};
Catching catch_up(const StepLeft& left, int64_t step);

std::string to_string(Reached reached);
std::optional<Reached> parse_reached(const std::string& text);

}  // namespace medley
