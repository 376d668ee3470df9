#pragma once

// How a value goes from one state to another: by an op of this device alone, or by a communication
// that is posted early and finished late. Knows what a value is, not where it is.

#include <map>
#include <vector>

#include "medley/lower/local_graph.h"

namespace medley {

// On one axis, or on the whole mesh from partial sums to the sum.
struct Conversion {
  int axis;  // or kWholeMesh
  State from, to;
  const AxisState& old_state() const { return from[axis < 0 ? 0 : at(axis)]; }
  const AxisState& new_state() const { return to[axis < 0 ? 0 : at(axis)]; }
  State gathered() const;  // as the other axes have it
  bool is_local() const;   // without a word to the others
};

class Redistribution {
 public:
  // `bucket_bytes`: of gradients that are all-reduced at once. Requires: `graph` outlives this.
  Redistribution(LocalGraph& graph, int64_t bucket_bytes)
      : graph_(graph), bucket_bytes_(static_cast<double>(bucket_bytes)) {}

  struct Started {
    int communication;
    ValueId received;  // what the communication gives
    AxisState from;
  };

  // Each returns what `local` becomes, or what is started with it: `value` in the state before.
  ValueId convert_locally(ValueId value, ValueId local, const Conversion& step);
  Started begin(ValueId value, ValueId local, const Conversion& step);
  Started all_reduce(ValueId value, ValueId local, const Conversion& step);
  // All-reduces are gathered into a bucket for each group until flush_buckets().
  Started all_reduce_in_bucket(ValueId value, ValueId local, const Conversion& step);
  ValueId finish(ValueId value, const Started& started, const State& to);
  void flush_buckets();

 private:
  struct Bucket {
    int communication = 0;  // that is being filled
    double bytes = 0;
  };
  Started gather(ValueId value, ValueId local, const Conversion& step);
  Started reduce_scatter(ValueId value, ValueId local, const Conversion& step);
  Started all_to_all(ValueId value, ValueId local, const Conversion& step);
  Started exchange(Communication communication,
                   ValueId input,
                   const TensorType& received,
                   const AxisState& from);

  LocalGraph& graph_;
  const double bucket_bytes_;
  std::map<int, Bucket> buckets_;  // by axis
};

}  // namespace medley
