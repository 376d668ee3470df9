#include "medley/elastic/decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr std::array<std::string_view, 5> kNames{
    "before", "at commit", "committed", "done", "torn"};

int64_t done(const StepLeft& left) {
  return left.reached == Reached::kDone ? left.step : left.step - 1;
}

bool is_past_commit(const StepLeft& left) {
  return left.reached == Reached::kCommitted || left.reached == Reached::kDone;
}

// Returns whether a survivor can reach a step. Without a part in commits it has no changed state.
bool can_get_to(const StepLeft& left, int64_t step) {
  if (left.reached == Reached::kTorn) return false;
  if (done(left) == step) return true;
  if (!left.commits) return left.step == step || done(left) == step + 1;
  if (left.step == step)
    return !left.spreads &&
           (left.reached == Reached::kAtCommit || left.reached == Reached::kCommitted);
  return left.spreads && done(left) == step + 1;
}

// Returns the result of a step's commit, if this survivor has it.
std::optional<double> commit_of(const StepLeft& left, int64_t step) {
  const int64_t last = is_past_commit(left) ? left.step : left.step - 1;
  return last == step ? left.committed : std::nullopt;
}

std::string describe(const StepLeft& left) {
  return fmt::format("{}: step {}, {}", left.device, left.step, to_string(left.reached));
}

}  // namespace

std::variant<Decision, std::string> decide(const std::vector<StepLeft>& survivors) {
  MEDLEY_CHECK(!survivors.empty());
  int64_t newest = -1;
  for (const StepLeft& left : survivors)
    newest = std::max(newest, is_past_commit(left) ? left.step : done(left));
  for (int64_t step : {newest, newest - 1}) {
    if (!std::ranges::all_of(survivors, [&](const auto& left) { return can_get_to(left, step); }))
      continue;
    Decision decision{step, {}};
    bool all_have_it = true;
    for (const StepLeft& left : survivors) {
      const bool finishes = catch_up(left, step).finish;
      const std::optional<double> gave = commit_of(left, step);
      if (finishes && !gave) all_have_it = false;
      if (!gave) continue;
      if (decision.committed && *decision.committed != *gave)
        return fmt::format(
            "the commit of step {} gave {} and {}", step, *decision.committed, *gave);
      decision.committed = gave;
    }
    if (all_have_it || decision.committed) return decision;
  }
  std::string all;
  for (const StepLeft& left : survivors)
    all += fmt::format("{}{}", all.empty() ? "" : "; ", describe(left));
  return fmt::format("no step that all survivors can have done: {}", all);
}

Catching catch_up(const StepLeft& left, int64_t step) {
  MEDLEY_CHECK(can_get_to(left, step));
  if (done(left) == step) return {false, left.reached == Reached::kDone ? 0 : 1};
  if (!left.commits) return {};
  if (left.step == step) return {true, 0};
  return {false, left.reached == Reached::kDone ? 1 : 2};
}

std::string to_string(Reached reached) {
  return std::string(kNames.at(static_cast<size_t>(reached)));
}

std::optional<Reached> parse_reached(const std::string& text) {
  const auto found = std::ranges::find(kNames, text);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Reached>(found - kNames.begin());
}

}  // namespace medley
