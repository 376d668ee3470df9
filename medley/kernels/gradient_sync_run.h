#pragma once

// One member's part of a gradient sync (boxes/gradient_sync.h), on its tensors. The mover of the
// two rounds' messages calls these in turn. Sums run in the order of the members, for 16-bit types
// in f32.

#include <ATen/core/Tensor.h>

#include <vector>

#include "medley/boxes/gradient_sync.h"
#include "medley/kernels/combine.h"

namespace medley {

class GradientSyncRun {
 public:
  // `inputs`: as SyncMember says; kept until first() has returned. Requires: the gradient sync
  // outlives this.
  GradientSyncRun(const GradientSync& sync,
                  int member,
                  Tensors inputs,
                  at::ScalarType dtype,
                  const at::Device& device);

  // Returns flat messages for each member, undefined if there is none, as for this member.
  Tensors first();
  // Returns the second messages, from the first ones of each member.
  Tensors second(const Tensors& received);
  // Returns the flat outputs of SyncMember, from the second messages of each member.
  Tensors outputs(const Tensors& received);

 private:
  at::Tensor packed(const SyncEnd& end, const at::Tensor& tensor) const;

  const GradientSync& sync_;
  int me_;
  Tensors inputs_;  // [tensor], undefined if absent
  at::TensorOptions options_;
  Tensors own_;   // pieces that this member gives and sums, in order
  Tensors sums_;  // computed here, in order
};

// Returns [member][output] for all members of one process.
std::vector<Tensors> run_together(std::vector<GradientSyncRun>& members);

}  // namespace medley
