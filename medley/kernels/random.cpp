// Random numbers that depend only on an element's position in the whole tensor.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "medley/base/error.h"
#include "medley/kernels/kernels.h"
#include "medley/kernels/philox.h"
#include "medley/kernels/places.h"

namespace medley {
namespace {

using at::Tensor;

constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53

double unit(uint32_t low, uint32_t high) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * kUnit;
}

template <typename T>
T uniform(const std::array<uint32_t, 4>& words) {
  constexpr int kDigits = std::numeric_limits<T>::digits;
  if constexpr (kDigits == 53)
    return unit(words[0], words[1]);
  else
    return static_cast<T>(std::ldexp(static_cast<float>(words[0] >> (32 - kDigits)), -kDigits));
}

double normal(const std::array<uint32_t, 4>& words) {
  const double radius = std::sqrt(-2.0 * std::log1p(-unit(words[0], words[1])));
  return radius * std::cos(2.0 * std::numbers::pi * unit(words[2], words[3]));
}

// Draws all elements. `make`: converts four words to an element.
template <typename T, typename Make>
void draw(T* y, const Runs& runs, const PhiloxKey& key, const Make& make) {
  constexpr int64_t kGrain = 4096;
  at::parallel_for(0, runs.total(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = runs.start_of(i / runs.length) + i % runs.length;
      y[i] = make(philox(key, static_cast<uint64_t>(place)));
    }
  });
}

// Returns uniform values by ATen ops, for devices without our own kernel.
Tensor unit(const Tensor& low, const Tensor& high) {
  const Tensor bits = high.bitwise_left_shift(at::Scalar(int64_t{21})) +
                      low.bitwise_right_shift(at::Scalar(int64_t{11}));
  return bits.to(at::kDouble) * kUnit;
}

Tensor uniform(const std::array<Tensor, 4>& words, at::ScalarType dtype) {
  if (dtype == at::kDouble) return unit(words[0], words[1]);
  const int64_t digits = dtype == at::kFloat ? 24 : dtype == at::kHalf ? 11 : 8;
  const Tensor bits = words[0].bitwise_right_shift(at::Scalar(32 - digits));
  return bits.to(at::kFloat).mul(std::ldexp(1.0, static_cast<int>(-digits))).to(dtype);
}

Tensor normal(const std::array<Tensor, 4>& words) {
  const Tensor radius = unit(words[0], words[1]).neg().log1p().mul(-2.0).sqrt();
  return radius * unit(words[2], words[3]).mul(2.0 * std::numbers::pi).cos();
}

}  // namespace

Tensor random(const Tensor& rng,
              std::string_view distribution,
              int64_t site,
              at::IntArrayRef shape,
              at::IntArrayRef sizes,
              at::IntArrayRef origin,
              at::IntArrayRef full,
              at::ScalarType dtype) {
  const bool is_normal = distribution == "normal";
  MEDLEY_CHECK(is_normal || distribution == "uniform");
  MEDLEY_CHECK_EQ(rng.numel(), 2);  // the seed and the step
  Tensor y = at::empty(shape, rng.options().dtype(dtype));
  if (y.numel() == 0) return y;
  const std::vector<int64_t> none(shape.size(), 0);
  const Runs runs = sizes.empty() ? runs_of(shape, none, shape) : runs_of(sizes, origin, full);
  MEDLEY_CHECK_EQ(runs.total(), y.numel());
  if (!rng.is_cpu()) {
    const auto words = philox(rng, site, places_of(runs, rng.options()));
    return (is_normal ? normal(words).to(dtype) : uniform(words, dtype)).view(shape);
  }
  const PhiloxKey key = philox_key(rng, site);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, dtype, "random", [&] {
    auto* elements = y.mutable_data_ptr<scalar_t>();
    if (is_normal)
      draw(elements, runs, key, [](const auto& w) { return static_cast<scalar_t>(normal(w)); });
    else
      draw(elements, runs, key, [](const auto& w) { return uniform<scalar_t>(w); });
  });
  return y;
}

}  // namespace medley
