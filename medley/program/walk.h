#pragma once

// The one walk over a stage's step: its calls in order, the steps of each call, and their ops,
// posts and waits. A visitor only handles each of them. Knows nothing of times, of bytes and of
// tensors.

#include <concepts>

#include "medley/program/calls.h"

namespace medley {

// A position before a step.
struct Position {
  size_t call = 0;  // into LoweredStage::calls
  size_t step = 0;  // in the call
  auto operator<=>(const Position&) const = default;
};

template <typename X>
concept StepKind = std::same_as<X, Segment> || std::same_as<X, Post> || std::same_as<X, Wait>;

// Mark the positions before the steps of every call, and after them.
struct CallBegin {};
struct CallEnd {};

// Builds one visitor from several functions.
template <typename... Functions>
struct Visitor : Functions... {
  using Functions::operator()...;
};

template <typename Visit, typename X>
concept Visits = std::invocable<Visit&, const Call&, Position, const X&>;

// Calls visit(call, position, x) for each Segment, Post, Wait and CallEnd `x` from a position on,
// if the visitor takes such an x. Stops if the visitor returns false: the position stays before
// that step, and a later walk resumes there. Returns whether the step ended. Throws as
// find_function().
template <typename Visit>
bool walk(const LoweredStage& stage, Position& from, Visit&& visit) {
  static_assert(Visits<Visit, Segment> || Visits<Visit, Post> || Visits<Visit, Wait>);
  for (; from.call < stage.calls.size(); from = {from.call + 1, 0}) {
    const Call& call = stage.calls[from.call];
    const auto goes_on = [&]<typename X>(const X& x) {
      if constexpr (!Visits<Visit, X>) {
        return true;
      } else if constexpr (std::same_as<decltype(visit(call, from, x)), bool>) {
        return visit(call, from, x);
      } else {
        visit(call, from, x);
        return true;
      }
    };
    const std::span<const Step> steps = steps_of(stage, call);
    if (from.step == 0) goes_on(CallBegin{});
    for (; from.step < steps.size(); ++from.step)
      if (!std::visit(goes_on, steps[from.step])) return false;
    goes_on(CallEnd{});
  }
  return true;
}

// Walks from the first call to the last.
template <typename Visit>
void walk(const LoweredStage& stage, Visit&& visit) {
  Position from;
  walk(stage, from, visit);
}

// An op, a post or a wait, without its segment.
struct Item {
  enum class Kind : uint8_t { kOp, kPost, kWait };
  Kind kind;
  int index;               // op or communication
  bool last_only = false;  // only in the last micro-batch's variant of the function
  bool operator==(const Item&) const = default;
};

// Calls visit(item, dies) for each op, post and wait of these steps, with `dies` of Segment and
// Post. Requires: segments free values for each of their ops.
template <typename Visit>
void for_each_item(std::span<const Step> steps, Visit&& visit) {
  static const std::vector<ValueId> kNothing;
  for (const Step& step : steps) {
    if (const auto* segment = std::get_if<Segment>(&step))
      for (size_t i = 0; i < segment->ops.size(); ++i)
        visit(Item{Item::Kind::kOp, segment->ops[i]}, segment->dies[i]);
    else if (const auto* post = std::get_if<Post>(&step))
      visit(Item{Item::Kind::kPost, post->communication}, post->dies);
    else
      visit(Item{Item::Kind::kWait, std::get<Wait>(step).communication}, kNothing);
  }
}

std::vector<Item> items_of(std::span<const Step> steps);

// Returns the values that an item reads, and those that it makes.
std::vector<ValueId> uses(const LoweredStage& stage, const Item& item);
const std::vector<ValueId>& definitions(const LoweredStage& stage, const Item& item);

}  // namespace medley
