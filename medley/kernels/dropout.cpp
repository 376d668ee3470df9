// Dropout with a mask that depends only on an element's position in the whole tensor.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/kernels/kernels.h"
#include "medley/kernels/philox.h"
#include "medley/kernels/places.h"

namespace medley {
namespace {

using at::Tensor;

uint32_t threshold_of(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// Processes elements [0, count) of a run that starts at element `first` of the whole tensor.
template <typename T, typename Wide>
void drop_run(const T* x,
              T* y,
              int64_t count,
              uint64_t first,
              const PhiloxKey& key,
              uint32_t least,
              Wide scale) {
  int64_t i = 0;
  while (i < count) {
    const uint64_t place = first + static_cast<uint64_t>(i);
    const auto words = philox(key, place / 4);
    const auto begin = static_cast<int64_t>(place % 4);
    const int64_t end = std::min<int64_t>(4, begin + count - i);
    for (int64_t w = begin; w < end; ++w, ++i)
      y[i] = words[at(w)] >= least ? static_cast<T>(static_cast<Wide>(x[i]) * scale)
                                   : static_cast<T>(Wide{0});
  }
}

template <typename T>
void drop(const T* x, T* y, const Runs& runs, const PhiloxKey& key, double p) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto scale = static_cast<Wide>(1.0 / (1.0 - p));
  const uint32_t least = threshold_of(p);
  constexpr int64_t kGrain = 16384;
  at::parallel_for(0, runs.total(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t run = i / runs.length, inside = i % runs.length;
      const int64_t count = std::min(end - i, runs.length - inside);
      drop_run<T, Wide>(x + i,
                        y + i,
                        count,
                        static_cast<uint64_t>(runs.start_of(run) + inside),
                        key,
                        least,
                        scale);
      i += count;
    }
  });
}

// Returns the word of every element, for devices without our own kernel.
Tensor words_at(const Tensor& places, const Tensor& rng, int64_t site) {
  const auto c = philox(rng, site, places.bitwise_right_shift(at::Scalar(int64_t{2})));
  const Tensor w = places.bitwise_and(at::Scalar(int64_t{3}));
  return at::where(w < 2, at::where(w == 0, c[0], c[1]), at::where(w == 2, c[2], c[3]));
}

}  // namespace

Tensor dropout(const Tensor& x,
               const Tensor& rng,
               double p,
               int64_t site,
               at::IntArrayRef sizes,
               at::IntArrayRef origin,
               at::IntArrayRef full) {
  MEDLEY_CHECK(p >= 0);
  if (p >= 1) return at::zeros_like(x);
  const std::vector<int64_t> none(x.dim(), 0);
  const Runs runs =
      sizes.empty() ? runs_of(x.sizes(), none, x.sizes()) : runs_of(sizes, origin, full);
  MEDLEY_CHECK_EQ(runs.total(), x.numel());
  if (x.numel() == 0) return at::empty_like(x);
  const Tensor flat = x.contiguous();
  if (!x.is_cpu()) {
    const Tensor places = places_of(runs, rng.options());
    const Tensor keep = words_at(places, rng, site).ge(static_cast<int64_t>(threshold_of(p)));
    return at::where(keep.view(x.sizes()), flat * (1.0 / (1.0 - p)), at::Scalar(0.0))
        .to(x.scalar_type());
  }
  Tensor y = at::empty_like(flat);
  const PhiloxKey key = philox_key(rng, site);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    drop(flat.const_data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(), runs, key, p);
  });
  return y;
}

}  // namespace medley
