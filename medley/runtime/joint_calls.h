#pragma once

// What all processes of a run have to call together and in one order, step() and parameters() for
// instance: a process that calls another one than the others waits for them, and they for it. Each
// counts its own and tells the others the last one.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace medley {

struct JointCall {
  int64_t number = 0;  // the first one is 1; 0: there was none
  bool running = false;
  std::string name;  // "step()"
  bool operator==(const JointCall&) const = default;
};

std::string to_text(const JointCall& call);
// Returns nothing for what to_text() does not write.
std::optional<JointCall> parse_joint_call(const std::string& text);

class JointCalls {
 public:
  // Within another one it is a part of that.
  void begin(const std::string& name);
  void end();

  JointCall last() const;
  // The name of the n-th one; nothing if that is long ago, or to come.
  std::optional<std::string> name(int64_t number) const;

 private:
  std::deque<std::string> names_;  // of the last ones
  int64_t count_ = 0;
  int depth_ = 0;
};

}  // namespace medley
