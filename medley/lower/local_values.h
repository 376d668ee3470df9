#pragma once

// Maps a value of the whole graph and a placement to a local value, and to the phase from which it
// is readable. Redistributes a value that is not available in its reader's placement.

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
  // Registers a value of the whole graph, after its op or as an input.
  void define(ValueId value, const State& state, ValueId local);
  // Registers a value as define() does, and forgets all other placements of it.
  void redefine(ValueId value, const State& state, ValueId local);
  // Registers a value as define() does, and makes this its own placement.
  void arrive(ValueId value, const State& state, ValueId local);
  // Announces a value that neither an op nor an input defines.
  void expect(ValueId value) { received_.insert(value); }
  // Calls `finish` before any read of the value.
  void finish_first(ValueId value, std::function<void()> finish) {
    unfinished_[value] = std::move(finish);
  }

  // Returns the local value of `value` in `state`, redistributed if necessary.
  ValueId in_state(ValueId value, const State& state);
  ValueId convert(ValueId value, const State& from, const State& to);
  // Starts to redistribute a gradient, which in_state() then completes. Gathers all-reduces into
  // buckets.
  void start(ValueId value, const State& state);
  // Replaces the value, with different compute types, by that of the first device that computes all
  // of it, so that stored and reported values are equal.
  void agree(ValueId value);

  // Keeps values made of an input for later phases.
  void keep_made(ValueId input) { saved_.insert(input); }
  // Makes the backward phase read the input's value of the forward phase of its micro-batch.
  void save_for_backward(ValueId input);

  // Returns the placement after its op, or after the communication that has brought it.
  const State& own_state(ValueId value) const;
  // Replaces the placements on axes of one device, all equal, by that of `as`.
  State on_axes_that_matter(State state, const State& as) const;
  std::vector<Conversion> conversions(const State& from, const State& to) const;

 private:
  struct Held {
    ValueId local;
    Phase phase;
    bool input;  // or a value whose op is an input: read from any phase
  };
  std::optional<ValueId> find(ValueId value, const State& state) const;
  // Throws Error(kCaller) if it is not available in this phase.
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
  // Sums from a relay, if their placement differs from the value's.
  std::map<ValueId, State> arrived_;
};

}  // namespace medley
