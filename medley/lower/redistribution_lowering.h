#pragma once

// Redistribution of a value: by an op of this device alone, or by a communication that is posted
// early and finished late. Knows the value, not its place.

#include <map>
#include <vector>

#include "medley/lower/local_graph.h"

namespace medley {

// On one axis, or on the whole mesh from partial sums to the sum.
struct AxisRedistribution {
  int axis;  // or kWholeMesh
  Placement from, to;
  const AxisPlacement& old_placement() const { return from[axis < 0 ? 0 : at(axis)]; }
  const AxisPlacement& new_placement() const { return to[axis < 0 ? 0 : at(axis)]; }
  Placement gathered() const;  // placement on the other axes
  bool is_local() const;       // without communication
};

class RedistributionLowering {
 public:
  // `bucket_bytes`: size of a gradient all-reduce. Requires: `graph` outlives this.
  RedistributionLowering(LocalGraph& graph, int64_t bucket_bytes)
      : graph_(graph), bucket_bytes_(static_cast<double>(bucket_bytes)) {}

  struct Started {
    int communication;
    ValueId received;  // result of the communication
    AxisPlacement from;
  };

  // Each returns the redistributed `local`, or the started one. `value` has the old placement.
  ValueId convert_locally(ValueId value, ValueId local, const AxisRedistribution& step);
  Started begin(ValueId value, ValueId local, const AxisRedistribution& step);
  Started all_reduce(ValueId value, ValueId local, const AxisRedistribution& step);
  // Gathers all-reduces into a bucket for each group until flush_buckets().
  Started all_reduce_in_bucket(ValueId value, ValueId local, const AxisRedistribution& step);
  ValueId finish(ValueId value, const Started& started, const Placement& to);
  void flush_buckets();

 private:
  struct Bucket {
    int communication = 0;  // the one being filled
    double bytes = 0;
  };
  Started gather(ValueId value, ValueId local, const AxisRedistribution& step);
  Started reduce_scatter(ValueId value, ValueId local, const AxisRedistribution& step);
  Started all_to_all(ValueId value, ValueId local, const AxisRedistribution& step);
  Started exchange(Communication communication,
                   ValueId input,
                   const TensorType& received,
                   const AxisPlacement& from);

  LocalGraph& graph_;
  const double bucket_bytes_;
  std::map<int, Bucket> buckets_;  // by axis
};

}  // namespace medley
