#include "medley/synthesis/spmd_mesh.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "medley/base/error.h"
#include "medley/sharding/redistribution.h"

namespace medley {
namespace {

// Returns devices that differ only in place on one axis, for each place on the others in order.
std::vector<std::vector<int>> groups_on(const std::vector<int>& devices, const AlongAxis& axis) {
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < static_cast<int>(devices.size()); ++first) {
    if (axis.place(first) != 0) continue;
    std::vector<int>& group = groups.emplace_back();
    for (int place = 0; place < axis.count; ++place)
      group.push_back(devices[at(first + place * axis.stride)]);
  }
  return groups;
}

}  // namespace

SpmdMesh::SpmdMesh(const CostModel& costs,
                   std::vector<int> devices,
                   std::vector<Part> parts,
                   Microbatch microbatch,
                   const std::vector<int64_t>& shape)
    : costs_(costs),
      devices_(std::move(devices)),
      parts_(std::move(parts)),
      microbatch_(std::move(microbatch)) {
  MEDLEY_CHECK(!devices_.empty());
  const std::vector<int64_t> sizes = shape.empty() ? std::vector<int64_t>{num_devices()} : shape;
  MEDLEY_CHECK(sizes.size() <= Placement::kMostAxes);
  MEDLEY_CHECK_EQ(along(sizes, kWholeMesh).count, num_devices());
  for (int axis = 0; axis < static_cast<int>(sizes.size()); ++axis) {
    along_.push_back(along(sizes, axis));
    axes_.emplace_back(costs_, groups_on(devices_, along_.back()), parts_, microbatch_);
  }
  std::map<std::string, size_t> kinds;  // name -> index into of_kind_
  for (int d = 0; d < num_devices(); ++d) {
    const auto [found, added] = kinds.try_emplace(kind(d).name, of_kind_.size());
    if (added) of_kind_.emplace_back();
    of_kind_[found->second].push_back(d);
  }
}

const DeviceKind& SpmdMesh::kind(int device) const {
  return costs_.cluster().kind(devices_[at(device)]);
}

bool SpmdMesh::may_cut(int axis, int part, bool batch) const {
  const std::string& name = parts_[at(part)].name;
  return axis == 0 ? (name == kRows) == batch : name == kEven;
}

const std::vector<SpmdMesh::Identical>& SpmdMesh::identical(const MeshCut& cut) {
  const auto [found, added] = identical_.try_emplace(cut);
  if (!added) return found->second;
  for (const Identical& devices : of_kind_) {
    std::map<std::vector<int64_t>, Identical> by_lengths;
    for (const int device : devices) {
      std::vector<int64_t> all;
      for (int axis = 0; axis < num_axes(); ++axis) {
        const FactorCut& on = cut[at(axis)];
        if (on.part < 0) continue;
        const int64_t size = on.within ? all.back() : on.size;
        all.push_back(lengths(axis, on.part, size)[at(place(device, axis))]);
      }
      by_lengths[std::move(all)].push_back(device);
    }
    for (auto& [lengths, each] : by_lengths) found->second.push_back(std::move(each));
  }
  return found->second;
}

int64_t SpmdMesh::length(int64_t size, int position, const Placement& placement, int device) {
  for (int a = 0; a < num_axes(); ++a)
    if (placement[at(a)].cuts(position))
      size = lengths(a, placement[at(a)].part, size)[at(place(device, a))];
  return size;
}

PlacementId SpmdMesh::id(const Placement& placement) {
  MEDLEY_CHECK_EQ(static_cast<int>(placement.size()), num_axes());
  const auto [found, added] =
      placement_ids_.try_emplace(placement, static_cast<PlacementId>(placements_.size()));
  if (added) placements_.push_back(placement);
  return found->second;
}

ShapeId SpmdMesh::id(const FactoredShape& shape) {
  const auto [found, added] = shape_ids_.try_emplace(shape, static_cast<ShapeId>(shapes_.size()));
  if (added) shapes_.push_back(shape);
  return found->second;
}

double SpmdMesh::scarce_bytes(ShapeId shape_id, PlacementId placement_id) {
  const FactoredShape& shape = this->shape(shape_id);
  const Placement& placement = this->placement(placement_id);
  std::vector<int> cut;  // distinct positions
  MeshCut by;
  for (const AxisPlacement& on : placement) {
    const bool is_cut = on.holding == Holding::kSharded;
    const bool within = is_cut && std::find(cut.begin(), cut.end(), on.position) != cut.end();
    by.push_back(is_cut ? FactorCut{on.part, shape.sizes[at(on.position)], within} : FactorCut{});
    if (is_cut && !within) cut.push_back(on.position);
  }
  if (cut.empty()) return shape.bytes();
  const auto memory = [&](int device) { return kind(device).memory_bytes; };
  double least = memory(0);
  for (const Identical& devices : of_kind_) least = std::min(least, memory(devices[0]));
  double most = 0;
  for (const Identical& devices : identical(by)) {
    double elements = 1;
    for (const int position : cut)
      elements *=
          static_cast<double>(length(shape.sizes[at(position)], position, placement, devices[0]));
    most = std::max(most, elements * least / std::max(memory(devices[0]), 1.0));
  }
  double bytes = shape.bytes();
  for (const int position : cut)
    bytes /= static_cast<double>(std::max<int64_t>(shape.sizes[at(position)], 1));
  return bytes * most;
}

const std::vector<int>& SpmdMesh::steps(PlacementId from, PlacementId to) {
  const uint64_t key = static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
  const auto [found, added] = steps_.try_emplace(key);
  if (!added) return found->second;
  Placement now = placement(from);
  for (const RedistributionStep& change : redistribution_steps(now, placement(to))) {
    const Step step{change.axis, id(now), change.to};
    now[at(change.axis)] = change.to;
    if (axis_of(change.axis).size() == 1) continue;
    const auto [known, is_new] = step_ids_.try_emplace(step, static_cast<int>(all_steps_.size()));
    if (is_new) {
      all_steps_.push_back(step);
      ticks_.emplace_back();
    }
    found->second.push_back(known->second);
  }
  return found->second;
}

// Returns the largest part of the value in a group: the pieces left by the other axis.
FactoredShape SpmdMesh::shape_in_group(const Step& step, const FactoredShape& shape, size_t which) {
  FactoredShape local = shape;
  const Placement& placement = this->placement(step.from);
  for (int axis = 0; axis < num_axes(); ++axis) {
    const AxisPlacement& other = placement[at(axis)];
    if (axis == step.axis || other.holding != Holding::kSharded) continue;
    int64_t& size = local.sizes[at(other.position)];
    const std::vector<int64_t>& all = lengths(axis, other.part, size);
    int64_t longest = 0;
    for (const int group : axis_of(step.axis).identical()[which])
      longest =
          std::max(longest, all[at(group)]);  // on two axes, the group is a place on the other
    size = longest;
  }
  return local;
}

SpmdMesh::StepTicks& SpmdMesh::ticks_of(int step_id, ShapeId shape) {
  std::vector<StepTicks>& known = ticks_[at(step_id)];
  if (at(shape) >= known.size()) known.resize(shapes_.size());
  StepTicks& ticks = known[at(shape)];
  if (ticks.alone >= 0) return ticks;
  const Step step = all_steps_[at(step_id)];
  const AxisPlacement from = placement(step.from)[at(step.axis)];
  SpmdAxis& axis = axis_of(step.axis);
  double seconds = 0;
  for (size_t which = 0; which < axis.identical().size(); ++which)
    seconds = std::max(
        seconds, axis.price(which, shape_in_group(step, this->shape(shape), which), from, step.to));
  ticks.alone = static_cast<Ticks>(std::llround(seconds * kTicksPerSecond));
  return ticks;
}

double SpmdMesh::ticks_in_bucket(int step_id, ShapeId shape) {
  StepTicks& ticks = ticks_of(step_id, shape);
  if (ticks.in_bucket >= 0) return ticks.in_bucket;
  const Step step = all_steps_[at(step_id)];
  const AxisPlacement from = placement(step.from)[at(step.axis)];
  ticks.in_bucket = static_cast<double>(ticks.alone);
  if (from.holding != Holding::kPartialSum || step.to.holding != Holding::kReplicated)
    return ticks.in_bucket;
  SpmdAxis& axis = axis_of(step.axis);
  const FactoredShape bucket{1, {kBucketBytes}};
  double most = 0;
  for (size_t which = 0; which < axis.identical().size(); ++which) {
    const Ticks full = std::llround(axis.price(which, bucket, from, step.to) * kTicksPerSecond);
    most = std::max(most,
                    static_cast<double>(full) *
                        shape_in_group(step, this->shape(shape), which).bytes() /
                        static_cast<double>(kBucketBytes));
  }
  ticks.in_bucket = std::min(ticks.in_bucket, most);
  return ticks.in_bucket;
}

double SpmdMesh::redistribution(ShapeId shape, PlacementId from, PlacementId to, bool in_buckets) {
  if (from == to || devices_.size() == 1) return 0;
  double sum = 0;
  for (const int step : steps(from, to))
    sum += in_buckets ? ticks_in_bucket(step, shape)
                      : static_cast<double>(ticks_of(step, shape).alone);
  return sum;
}

}  // namespace medley
