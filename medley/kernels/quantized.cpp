// Four-bit weights, dequantised for use.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "medley/base/error.h"
#include "medley/kernels/kernels.h"

namespace medley {
namespace {

using at::Tensor;

// Dequantises by ATen ops, for devices without our own kernel.
Tensor by_ops(const Tensor& packed, const Tensor& absmax, const Tensor& code) {
  const Tensor halves = at::stack(
      {packed.bitwise_right_shift(at::Scalar(4)), packed.bitwise_and(at::Scalar(15))}, -1);
  return code.index({halves.to(at::kInt)}).flatten(1) * absmax.unsqueeze(1);
}

}  // namespace

Tensor dequantize_4bit(const Tensor& packed,
                       const Tensor& absmax,
                       const Tensor& code,
                       at::ScalarType dtype) {
  MEDLEY_CHECK_EQ(packed.dim(), 2);
  MEDLEY_CHECK_EQ(packed.size(0), absmax.numel());
  MEDLEY_CHECK_EQ(code.numel(), 16);
  const int64_t blocks = packed.size(0), bytes = packed.size(1);
  if (!packed.is_cpu()) return by_ops(packed, absmax, code).to(dtype);
  Tensor values = at::empty({blocks, 2 * bytes}, packed.options().dtype(dtype));
  const Tensor from = packed.contiguous(), scales = absmax.to(at::kFloat).contiguous(),
               table = code.to(at::kFloat).contiguous();
  const auto* halves = from.const_data_ptr<uint8_t>();
  const auto* largest = scales.const_data_ptr<float>();
  const auto* known = table.const_data_ptr<float>();
  constexpr int64_t kGrain = 256;  // blocks
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, dtype, "dequantize_4bit", [&] {
    auto* to = values.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, blocks, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block)
        for (int64_t i = block * bytes; i < (block + 1) * bytes; ++i) {
          to[2 * i] = static_cast<scalar_t>(known[halves[i] >> 4] * largest[block]);
          to[2 * i + 1] = static_cast<scalar_t>(known[halves[i] & 15] * largest[block]);
        }
    });
  });
  return values;
}

}  // namespace medley
