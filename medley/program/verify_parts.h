#pragma once

// The parts of verify(program). Each throws Error(kUs), which names stage, call and op or
// communication, what was found and what was expected. Know nothing of plans and graphs.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "medley/program/program.h"

namespace medley {

[[noreturn]] void refuse_program(const std::string& place, const std::string& what);
// Formats the message only on failure: for a thousand devices formatting takes longer than
// checking.
template <typename... Args>
void expect_program(bool holds,
                    const std::string& place,
                    fmt::format_string<const Args&...> what,
                    const Args&... args) {
  if (!holds) refuse_program(place, fmt::format(what, args...));
}
std::string stage_name(size_t stage);  // "stage 1"

// Checks one stage: every read value is available; freed and replaced values are not read; values
// are freed after their last read; every micro-batch runs each function once, in one order. The
// last variant of a function does the same and ends the step. Costs a walk over the functions, plus
// a look-up for each call.
void verify_values(const Program& program, size_t stage);

// Checks one stage: parts of calls form whole functions. Between them are only others of the same
// function (and forward calls between parts of backward ones). They wait for no exchange that
// another micro-batch has posted. They access values of the step in the order of whole calls,
// placed at their first parts. Requires: the stage has the functions of its calls.
void verify_turns(const LoweredStage& stage, const std::string& place);

// Checks all stages: both ends of an exchange agree on members, tensors, lengths and dtypes. The
// sends on a lane match its receives in order. Members of a group post the same in one order. Costs
// one evaluation per message between devices, once for micro-batches of equal lengths.
void verify_messages(const Program& program);

// Checks all stages for deadlock: some order of their calls runs to the end. Requires:
// verify_messages() has passed. Costs a look at each message between stages.
void verify_progress(const Program& program);

// Checks all gradient syncs: cells fit the members' inputs and outputs, with every term once. New
// values that owners send to all leave only after all sums over stages except the loss have
// arrived. A step that fails earlier has thus changed no state. Requires: verify_messages() has
// passed.
void verify_gradient_syncs(const Program& program);

}  // namespace medley
