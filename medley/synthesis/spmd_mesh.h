#pragma once

// What synthesis knows of a mesh of one or two axes: the pieces that its devices get of a factor,
// and what it costs to bring a value from one state to another, axis by axis
// (sharding/conversion.h).
//
//            axis 1 ──▶                 a state: one entry per axis, (S(0, rows), S(1, even))
//   axis 0  d0  d1  d2  d3   node 0     conversion on axis 1: within {d0 ... d3} and {d4 ... d7},
//      │    d4  d5  d6  d7   node 1     on axis 0: within {d0, d4}, {d1, d5} ... through two ports
//      ▼
//
// A factor that both axes cut is cut by axis 0 first; axis 1 divides each of its pieces.

#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "medley/base/at.h"
#include "medley/program/calls.h"
#include "medley/synthesis/spmd_axis.h"

namespace medley {

// Times in synthesis are integers, so that equal ops have bitwise equal costs: tenths of a
// nanosecond, of which kForbidden (pbqp.h) is more than a day.
using Ticks = int64_t;
inline constexpr int64_t kTicksPerNanosecond = 10;
inline constexpr double kTicksPerSecond = 1e10;

// States and shapes by number, in the order in which a mesh has met them.
using StateId = int32_t;
using ShapeId = int32_t;

// Gradients are all-reduced in buckets: only bytes count, not how many tensors there are.
inline constexpr int64_t kBucketBytes = 25 << 20;

class SpmdMesh {
 public:
  // `parts` as of parts_of() (lower/complete.h). `shape`: sizes of the axes, over which `devices`
  // lie in row-major order; empty: one axis. Requires: `costs` outlives this; at most two axes.
  SpmdMesh(const CostModel& costs,
           std::vector<int> devices,
           std::vector<Part> parts,
           Microbatch microbatch,
           const std::vector<int64_t>& shape = {});

  const CostModel& costs() const { return costs_; }
  const std::vector<int>& devices() const { return devices_; }
  const std::vector<Part>& parts() const { return parts_; }
  const Microbatch& microbatch() const { return microbatch_; }
  int num_devices() const { return static_cast<int>(devices_.size()); }
  int num_axes() const { return static_cast<int>(axes_.size()); }
  const DeviceKind& kind(int device) const;  // of devices()

  // Whether synthesis cuts the batch, or anything else, by this part on this axis: "rows" and those
  // with shares on the first one, "even" on both.
  bool may_cut(int axis, int part, bool batch) const;

  // Where a factor is cut on an axis. `within`: it is what the axis before leaves of the factor.
  struct FactorCut {
    int part = -1;  // -1: nowhere
    int64_t size = 0;
    bool within = false;
    auto operator<=>(const FactorCut&) const = default;
  };
  using MeshCut = std::vector<FactorCut>;  // [axis]
  // The devices of one kind and length are alike: one of them tells what all of them take.
  using Alike = std::vector<int>;
  const std::vector<Alike>& alike(const MeshCut& cut);

  // The piece of factor `position`, of this size, that a device has in a state.
  int64_t length(int64_t size, int position, const State& state, int device);
  // How an axis divides a piece, and the place of a device on it.
  const std::vector<int64_t>& lengths(int axis, int part, int64_t size) {
    return axis_of(axis).pieces(part, size).lengths;
  }
  int place(int device, int axis) const { return along_[at(axis)].place(device); }

  // Equal states have equal numbers; references stay valid.
  StateId id(const State& state);
  const State& state(StateId id) const { return states_[at(id)]; }
  ShapeId id(const FactoredShape& shape);
  const FactoredShape& shape(ShapeId id) const { return shapes_[at(id)]; }

  // The bytes on the device on which they weigh most, one of twice the least memory counting half.
  double scarce_bytes(ShapeId shape, StateId state);

  // The time of what the lowering puts in between: on each axis the slowest group counts. With
  // `in_buckets`, an all-reduce takes no more than its share of a bucket's.
  double conversion(ShapeId shape, StateId from, StateId to, bool in_buckets = false);
  Ticks conversion(const FactoredShape& shape, const State& from, const State& to) {
    return static_cast<Ticks>(conversion(id(shape), id(from), id(to)));
  }

 private:
  struct Step {  // of a conversion: one axis changes
    int axis = 0;
    StateId from = 0;
    AxisState to;
    auto operator<=>(const Step&) const = default;
  };
  struct StepTicks {
    Ticks alone = -1;
    double in_bucket = -1;  // < 0: not asked for yet
  };

  SpmdAxis& axis_of(int axis) { return axes_[at(axis)]; }
  const std::vector<int>& steps(StateId from, StateId to);
  FactoredShape shape_in_group(const Step& step, const FactoredShape& shape, size_t which);
  StepTicks& ticks_of(int step, ShapeId shape);
  double ticks_in_bucket(int step, ShapeId shape);

  const CostModel& costs_;
  std::vector<int> devices_;
  std::vector<Part> parts_;
  Microbatch microbatch_;
  std::vector<AlongAxis> along_;  // [axis]
  std::vector<SpmdAxis> axes_;
  std::vector<Alike> of_kind_;
  std::map<MeshCut, std::vector<Alike>> alike_;
  std::deque<State> states_;
  std::map<State, StateId> state_ids_;
  std::deque<FactoredShape> shapes_;
  std::map<FactoredShape, ShapeId> shape_ids_;
  std::vector<Step> all_steps_;
  std::map<Step, int> step_ids_;
  std::unordered_map<uint64_t, std::vector<int>> steps_;  // (from, to)
  std::vector<std::vector<StepTicks>> ticks_;             // [step][shape]
};

}  // namespace medley
