#pragma once

// Maps a value of the whole graph and a placement to a local value, and to the phase from which it
// is readable. Redistributes a value that is not available in its reader's placement.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "medley/lower/redistribution_lowering.h"

namespace medley {

class LocalValues {
 public:
  // Requires: both outlive this.
  LocalValues(LocalGraph& graph, RedistributionLowering& redistribution)
      : graph_(graph), redistribution_(redistribution) {}

  // Adds an input and returns its local value.
  ValueId add_input(const Input& input, const Placement& placement);
  // Registers a value of the whole graph, after its op or as an input.
  void define(ValueId value, const Placement& placement, ValueId local);
  // Registers a value as define() does, and forgets all other placements of it.
  void redefine(ValueId value, const Placement& placement, ValueId local);
  // Registers a value as define() does, and makes this its own placement.
  void arrive(ValueId value, const Placement& placement, ValueId local);
  // Announces a value that neither an op nor an input defines.
  void expect(ValueId value) { received_.insert(value); }
  // Calls `finish` before any read of the value.
  void finish_first(ValueId value, std::function<void()> finish) {
    unfinished_[value] = std::move(finish);
  }

  // Returns the local value of `value` in `state`, redistributed if necessary.
  ValueId in_placement(ValueId value, const Placement& placement);
  ValueId convert(ValueId value, const Placement& from, const Placement& to);
  // Starts to redistribute a gradient, which in_placement() then completes. Gathers all-reduces
  // into buckets.
  void start(ValueId value, const Placement& placement);
  // Replaces the value, with different compute types, by that of the first device that computes all
  // of it, so that stored and reported values are equal.
  void agree(ValueId value);

  // Keeps values made of an input for later phases.
  void keep_made(ValueId input) { saved_.insert(input); }
  // Makes the backward phase read the input's value of the forward phase of its micro-batch.
  void save_for_backward(ValueId input);

  // Returns the placement after its op, or after the communication that has brought it.
  const Placement& own_placement(ValueId value) const;
  // Replaces the placements on axes of one device, all equal, by that of `as`.
  Placement on_axes_that_matter(Placement placement, const Placement& as) const;
  std::vector<AxisRedistribution> redistributions(const Placement& from, const Placement& to) const;

 private:
  struct Held {
    ValueId local;
    Phase phase;
    bool input;  // or a value whose op is an input: read from any phase
  };
  std::optional<ValueId> find(ValueId value, const Placement& placement) const;
  // Throws Error(kCaller) if it is not available in this phase.
  ValueId held(ValueId value, const Placement& placement) const;
  bool is_run_input(ValueId value) const;
  std::optional<ValueId> view_of_converted(ValueId value, const Placement& placement);
  bool is_parameter_view(ValueId value) const;
  ValueId convert(ValueId value, const AxisRedistribution& step);

  LocalGraph& graph_;
  RedistributionLowering& redistribution_;
  std::map<std::pair<ValueId, Placement>, std::vector<Held>> held_;
  std::map<std::pair<ValueId, Placement>, RedistributionLowering::Started> started_;
  std::set<ValueId> received_;
  std::set<ValueId> saved_;
  std::map<ValueId, std::function<void()>> unfinished_;
  // Sums from a gradient sync, if their placement differs from the value's.
  std::map<ValueId, Placement> arrived_;
};

}  // namespace medley
