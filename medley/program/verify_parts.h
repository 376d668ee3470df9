#pragma once

// What verify(program) checks, in parts. Each throws Error(kUs), which names stage, call and
// op or communication, what was found and what was expected. Know nothing of plans and graphs.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "medley/program/program.h"

namespace medley {

[[noreturn]] void refuse_program(const std::string& place, const std::string& what);
// What is refused is written only then: of a thousand devices that takes longer than to look.
template <typename... Args>
void expect_program(bool holds,
                    const std::string& place,
                    fmt::format_string<const Args&...> what,
                    const Args&... args) {
  if (!holds) refuse_program(place, fmt::format(what, args...));
}
std::string stage_name(size_t stage);  // "stage 1"

// Of one stage: every call finds what it reads; nobody reads what has been freed or replaced; what
// nobody reads any more is freed; every micro-batch runs each function once, in one order; the last
// variant of a function does what the others do, and ends the step. Costs what the functions cost,
// and a look-up for each call.
void verify_values(const Program& program, size_t stage);

// Of one stage: parts of calls make up whole functions, have among them others of the same function
// only (and forward calls among parts of backward ones), wait for nothing that another micro-batch
// has posted, and read and write what is of the step in the order in which the calls would, whole,
// where their first parts are. Requires: the stage has the functions of its calls.
void verify_turns(const LoweredStage& stage, const std::string& place);

// Of all stages: who exchanges something expects the same of it. Members, tensors, lengths, dtypes;
// what is sent on a lane is what is received, one after the other; members of a group post the same
// in one order. Costs as many evaluations as there are messages between devices, once for
// micro-batches of equal lengths.
void verify_messages(const Program& program);

// Of all stages: their calls can be made in some order in which nobody waits for ever. Requires:
// verify_messages() has passed. Costs a look at each message between stages.
void verify_progress(const Program& program);

// Of all relays: cells that fit what their members put in and get out, every term once. Of new
// values, which owners send to all: none sets out before everything that is summed over stages has
// arrived, but for the loss, so that a step that fails before has changed nothing anywhere.
// Requires: verify_messages() has passed.
void verify_relays(const Program& program);

}  // namespace medley
