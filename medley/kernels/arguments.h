#pragma once

// The arguments of an op as PyTorch's boxed calls take them. Knows nothing of frames and devices
// other than the one it is given.

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace c10 {
class OperatorHandle;
struct Argument;
}  // namespace c10

namespace medley {

c10::ScalarType to_scalar_type(DType dtype);
// Throws Error(kCaller) on an element type that graphs do not have.
DType to_dtype(c10::ScalarType type);

// Returns the operator that "aten.mm.default" names. Throws Error(kCaller) if this PyTorch has
// none.
c10::OperatorHandle find_operator(const std::string& name);
// Whether it exists, without an exception.
bool has_operator(const std::string& name);

// Returns the value of an argument that is no tensor, as the schema types it; None for tensors,
// which are filled in at run time. A device is always `device`. Throws Error(kCaller) saying what
// the schema expects.
c10::IValue to_ivalue(const Argument& argument,
                      const c10::Argument& schema,
                      const std::vector<int64_t>& symbols,
                      c10::Device device);

// Returns the shape that the type has when the symbols have these values.
std::vector<int64_t> shape_of(const TensorType& type, const std::vector<int64_t>& symbols);

}  // namespace medley
