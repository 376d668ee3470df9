#pragma once

// Which local value holds a value of the whole graph in which state, and from which phase it may be
// read. A value that is not there in the state of its reader is converted.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "medley/lower/redistribution.h"

namespace medley {

class LocalValues {
 public:
  // Requires: both outlive this.
  LocalValues(LocalGraph& graph, Redistribution& redistribution)
      : graph_(graph), redistribution_(redistribution) {}

  // Adds an input and returns its local value.
  ValueId add_input(const Input& input, const State& state);
  // Makes a value of the whole graph known, as it is now, after its op (or as an input).
  void define(ValueId value, const State& state, ValueId local);
  // The same in the place of all that is known of it.
  void redefine(ValueId value, const State& state, ValueId local);
  // The same, and from now on this state is its own.
  void arrive(ValueId value, const State& state, ValueId local);
  // Something defines a value that no op and no input does.
  void expect(ValueId value) { received_.insert(value); }
  // Calls `finish` before anything reads the value.
  void finish_first(ValueId value, std::function<void()> finish) {
    unfinished_[value] = std::move(finish);
  }

  // Returns the local value that holds `value` in `state`, converting if it has to.
  ValueId in_state(ValueId value, const State& state);
  ValueId convert(ValueId value, const State& from, const State& to);
  // Starts the conversion of a gradient, of which in_state() then finishes what is under way and
  // does the rest. All-reduces are gathered into buckets.
  void start(ValueId value, const State& state);
  // Where devices compute in different types: from now on all have the value of the first device
  // that computes all of it, so that kept and reported values are equal.
  void agree(ValueId value);

  // From now on values made of an input are there in later phases, too.
  void keep_made(ValueId input) { saved_.insert(input); }
  // Has the backward phase read what an input is in the forward phase of its micro-batch.
  void save_for_backward(ValueId input);

  // As its op, or what has brought it, leaves it.
  const State& own_state(ValueId value) const;
  // On an axis of one device all states are one: that of `as`.
  State on_axes_that_matter(State state, const State& as) const;
  std::vector<Conversion> conversions(const State& from, const State& to) const;

 private:
  struct Held {
    ValueId local;
    Phase phase;
    bool input;  // or a value whose op is an input: read from any phase
  };
  std::optional<ValueId> find(ValueId value, const State& state) const;
  // Throws Error(kCaller) if it is not there in this phase.
  ValueId held(ValueId value, const State& state) const;
  bool is_run_input(ValueId value) const;
  std::optional<ValueId> view_of_converted(ValueId value, const State& state);
  bool is_parameter_view(ValueId value) const;
  ValueId convert(ValueId value, const Conversion& step);

  LocalGraph& graph_;
  Redistribution& redistribution_;
  std::map<std::pair<ValueId, State>, std::vector<Held>> held_;
  std::map<std::pair<ValueId, State>, Redistribution::Started> started_;
  std::set<ValueId> received_;
  std::set<ValueId> saved_;
  std::map<ValueId, std::function<void()>> unfinished_;
  std::map<ValueId, State> arrived_;  // sums that a relay has brought, where that is another state
                                      // than that of the value
};

}  // namespace medley
