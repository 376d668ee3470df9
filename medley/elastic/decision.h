#pragma once

// After a failure: which step all survivors are to have done, and what each does for that.
//
//   nobody has passed the commit of step s    keep s - 1    s is made again
//   some have                                 finish s      the others get what it gave
//   some have, and new parameters spread      keep s - 1    s is undone where it is done
//
// The commit (program/commit.h) ends on a device only when every device has contributed, so that
// whoever has not passed it lacks only what it gives. Knows no tensors and no messages.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "medley/runtime/interpreter.h"

namespace medley {

// What a survivor says of the last step that it has begun.
struct StepLeft {
  std::string device;
  int64_t step = -1;  // -1: it has begun none
  Reached reached = Reached::kDone;
  // What the last commit gave that it has passed.
  std::optional<double> committed{};
  bool commits = true;   // it has a part in commits
  bool spreads = false;  // it takes others to end a step behind its commit
  int back = 0;          // larger each time it goes back to an older state; 0: never
  int loads = 0;         // checkpoints that the script has loaded
  bool operator==(const StepLeft&) const = default;
};

struct Decision {
  int64_t step = -1;                  // that all have done then
  std::optional<double> committed{};  // for those who have to finish it
  bool operator==(const Decision&) const = default;
};

// Returns what to do, or the sentence why survivors cannot go on from what they have.
std::variant<Decision, std::string> decide(const std::vector<StepLeft>& survivors);

// How a survivor gets there.
struct Catching {
  bool finish = false;  // the rest of its step
  int undo = 0;         // steps
  bool operator==(const Catching&) const = default;
};
Catching catch_up(const StepLeft& left, int64_t step);

std::string to_string(Reached reached);
std::optional<Reached> parse_reached(const std::string& text);

}  // namespace medley
