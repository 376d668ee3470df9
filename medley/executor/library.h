#pragma once

// The kernels of the ops of ours, as operators of PyTorch.

namespace medley {

// Makes all of them known to the dispatcher as medley::<name>. Later calls do nothing.
void register_kernels();

}  // namespace medley
