#pragma once

// Optimizers that somebody has written: graphs of one element (ops/update_ops.h).

#include <string>

#include "medley/torch/update.h"

namespace medley {

// As an Update does, with what the program says of each element.
void run_program(std::vector<Updated>& parameters,
                 const at::Tensor& scalars,
                 const std::string& program);

}  // namespace medley
