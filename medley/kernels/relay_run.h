#pragma once

// What one member does of a relay (boxes/relay.h), on its tensors. Whoever moves the messages of
// the two rounds calls these in turn. Sums run in the order of the members, of 16-bit types in f32.

#include <ATen/core/Tensor.h>

#include <vector>

#include "medley/boxes/relay.h"
#include "medley/kernels/combine.h"

namespace medley {

class RelayRun {
 public:
  // `inputs`: as RelayMember says; they are held until the first messages are made. Requires: the
  // relay outlives this.
  RelayRun(const Relay& relay,
           int member,
           Tensors inputs,
           at::ScalarType dtype,
           const at::Device& device);

  // Flat messages for each member: undefined where there is none, as for oneself.
  Tensors first();
  // From the first messages of each member, the second ones.
  Tensors second(const Tensors& received);
  // From the second messages of each member, what RelayMember says, flat.
  Tensors outputs(const Tensors& received);

 private:
  at::Tensor packed(const RelayEnd& end, const at::Tensor& tensor) const;

  const Relay& relay_;
  int me_;
  Tensors inputs_;  // [tensor], undefined where there is none
  at::TensorOptions options_;
  Tensors own_;   // pieces that this member gives and sums, in order
  Tensors sums_;  // that it has made, in order
};

// Of all members of one process: [member][output].
std::vector<Tensors> run_together(std::vector<RelayRun>& members);

}  // namespace medley
