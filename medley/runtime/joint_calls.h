#pragma once

// Calls that all processes of a run must make together and in one order, for instance step() and
// parameters(). If a process makes a different one, all of them block. Each therefore counts its
// calls and publishes the last one.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace medley {

struct JointCall {
  int64_t number = 0;  // from 1; 0: none
  bool running = false;
  std::string name;  // "step()"
  bool operator==(const JointCall&) const = default;
};

std::string to_text(const JointCall& call);
// Returns nothing for text that to_text() does not write.
std::optional<JointCall> parse_joint_call(const std::string& text);

class JointCalls {
 public:
  // Begins a call; a nested one belongs to the outer one.
  void begin(const std::string& name);
  void end();

  JointCall last() const;
  // Returns the name of the n-th call, or nothing if it is too old or in the future.
  std::optional<std::string> name(int64_t number) const;

 private:
  std::deque<std::string> names_;  // the last ones
  int64_t count_ = 0;
  int depth_ = 0;
};

}  // namespace medley
