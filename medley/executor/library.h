#pragma once

// The kernels of our own ops, as operators of PyTorch.

namespace medley {

// Registers all of them with the dispatcher as medley::<name>. Later calls do nothing.
void register_kernels();

}  // namespace medley
