#pragma once

// The arguments of an op for PyTorch's boxed calls. Knows nothing of frames, and only the given
// device.

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

// Returns the operator that "aten.mm.default" names. Throws Error(kCaller) if this PyTorch lacks
// it.
c10::OperatorHandle find_operator(const std::string& name);

// Returns a non-tensor argument, typed by the schema, or None for tensors, which are set at run
// time. A device becomes `device`. Throws Error(kCaller) with the schema's expectation.
c10::IValue to_ivalue(const Argument& argument,
                      const c10::Argument& schema,
                      const std::vector<int64_t>& symbols,
                      c10::Device device);

// Returns the shape of the type for these symbol values.
std::vector<int64_t> shape_of(const TensorType& type, const std::vector<int64_t>& symbols);

}  // namespace medley
