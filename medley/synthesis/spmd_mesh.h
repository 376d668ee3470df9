#pragma once

// A mesh of one or two axes in synthesis: pieces of a factor on its devices, and costs of
// redistribution between placements, axis by axis (sharding/redistribution.h).
//
//            axis 1 ──▶                 a placement: one entry per axis, (S(0, rows), S(1, even))
//   axis 0  d0  d1  d2  d3   node 0     groups on axis 1: {d0 ... d3} and {d4 ... d7},
//      │    d4  d5  d6  d7   node 1            on axis 0: {d0, d4}, {d1, d5} ... through two ports
//      ▼
//
// If both axes cut a factor, axis 0 cuts first; axis 1 divides each of its pieces.

#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "medley/base/at.h"
#include "medley/program/calls.h"
#include "medley/synthesis/spmd_axis.h"

namespace medley {

// Times in synthesis are integers in tenths of a ns, so equal ops have bitwise equal costs.
// kForbidden (pbqp.h) is then more than a day.
using Ticks = int64_t;
inline constexpr int64_t kTicksPerNanosecond = 10;
inline constexpr double kTicksPerSecond = 1e10;

// Numbers of placements and shapes, in order of first use on a mesh.
using PlacementId = int32_t;
using ShapeId = int32_t;

// Gradients are all-reduced in buckets: costs depend on bytes, not on the number of tensors.
inline constexpr int64_t kBucketBytes = 25 << 20;

class SpmdMesh {
 public:
  // `parts`: as of parts_of() (lower/complete.h). `shape`: axis sizes, with `devices` in row-major
  // order; empty: one axis. Requires: `costs` outlives this; at most two axes.
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
  const DeviceKind& kind(int device) const;  // in devices()

  // Returns whether synthesis cuts the batch, or other values, by this part on this axis: "rows"
  // and shares on the first one, "even" on both.
  bool may_cut(int axis, int part, bool batch) const;

  // Cut of a factor on an axis. `within`: it cuts the pieces of the axis before.
  struct FactorCut {
    int part = -1;  // -1: not cut
    int64_t size = 0;
    bool within = false;
    auto operator<=>(const FactorCut&) const = default;
  };
  using MeshCut = std::vector<FactorCut>;  // [axis]
  // Devices of one type and length; one of them determines the time of all.
  using Identical = std::vector<int>;
  const std::vector<Identical>& identical(const MeshCut& cut);

  // Returns the length of a device's piece of factor `position`, of size `size`.
  int64_t length(int64_t size, int position, const Placement& placement, int device);
  // Return the lengths in which an axis divides a piece, and the place of a device on it.
  const std::vector<int64_t>& lengths(int axis, int part, int64_t size) {
    return axis_of(axis).pieces(part, size).lengths;
  }
  int place(int device, int axis) const { return along_[at(axis)].place(device); }

  // Equal placements have equal numbers; references stay valid.
  PlacementId id(const Placement& placement);
  const Placement& placement(PlacementId id) const { return placements_[at(id)]; }
  ShapeId id(const FactoredShape& shape);
  const FactoredShape& shape(ShapeId id) const { return shapes_[at(id)]; }

  // Returns the bytes, weighted by the least memory over the device's memory, at their maximum.
  double scarce_bytes(ShapeId shape, PlacementId placement);

  // Returns the time of a redistribution: the slowest group counts on each axis. With `in_buckets`,
  // an all-reduce takes only its share of a bucket's time.
  double redistribution(ShapeId shape, PlacementId from, PlacementId to, bool in_buckets = false);
  Ticks redistribution(const FactoredShape& shape, const Placement& from, const Placement& to) {
    return static_cast<Ticks>(redistribution(id(shape), id(from), id(to)));
  }

 private:
  struct Step {  // one step of a redistribution: one axis changes
    int axis = 0;
    PlacementId from = 0;
    AxisPlacement to;
    auto operator<=>(const Step&) const = default;
  };
  struct StepTicks {
    Ticks alone = -1;
    double in_bucket = -1;  // < 0: not computed
  };

  SpmdAxis& axis_of(int axis) { return axes_[at(axis)]; }
  const std::vector<int>& steps(PlacementId from, PlacementId to);
  FactoredShape shape_in_group(const Step& step, const FactoredShape& shape, size_t which);
  StepTicks& ticks_of(int step, ShapeId shape);
  double ticks_in_bucket(int step, ShapeId shape);

  const CostModel& costs_;
  std::vector<int> devices_;
  std::vector<Part> parts_;
  Microbatch microbatch_;
  std::vector<AlongAxis> along_;  // [axis]
  std::vector<SpmdAxis> axes_;
  std::vector<Identical> of_kind_;
  std::map<MeshCut, std::vector<Identical>> identical_;
  std::deque<Placement> placements_;
  std::map<Placement, PlacementId> placement_ids_;
  std::deque<FactoredShape> shapes_;
  std::map<FactoredShape, ShapeId> shape_ids_;
  std::vector<Step> all_steps_;
  std::map<Step, int> step_ids_;
  std::unordered_map<uint64_t, std::vector<int>> steps_;  // (from, to)
  std::vector<std::vector<StepTicks>> ticks_;             // [step][shape]
};

}  // namespace medley
