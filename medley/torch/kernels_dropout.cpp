// Dropout whose mask depends on the place of an element in the whole tensor and on nothing else
// (Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/torch/kernels.h"
#include "medley/torch/places.h"

namespace medley {
namespace {

using at::Tensor;

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

struct Key {
  uint32_t low, high;
  uint32_t step_low, step_high;
};

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

std::array<uint32_t, 4> philox(const Key& key, uint64_t block) {
  std::array<uint32_t, 4> c{low(block), high(block), key.step_low, key.step_high};
  uint32_t k0 = key.low, k1 = key.high;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{kMultiplier0} * c[0], b = uint64_t{kMultiplier1} * c[2];
    c = {high(b) ^ c[1] ^ k0, low(b), high(a) ^ c[3] ^ k1, low(a)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

Key make_key(const Tensor& rng, int64_t site) {
  const Tensor host = rng.cpu();
  const auto* words = host.const_data_ptr<int64_t>();
  const auto seed = static_cast<uint64_t>(words[0]), step = static_cast<uint64_t>(words[1]);
  return {low(seed) ^ low(static_cast<uint64_t>(site)), high(seed), low(step), high(step)};
}

uint32_t threshold_of(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// Elements [0, count) of a run that starts at element `first` of the whole tensor.
template <typename T, typename Wide>
void drop_run(
    const T* x, T* y, int64_t count, uint64_t first, const Key& key, uint32_t least, Wide scale) {
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
void drop(const T* x, T* y, const Runs& runs, const Key& key, double p) {
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

// The same by tensor arithmetic on 64-bit integers, for devices that we have no kernel of our own
// for.
Tensor words_at(const Tensor& places, const Tensor& rng, int64_t site) {
  constexpr int64_t kLow = 0xFFFFFFFF;
  const auto low_word = [](const Tensor& t) { return t.bitwise_and(kLow); };
  const auto high_word = [](const Tensor& t) {
    return t.bitwise_right_shift(at::Scalar(int64_t{32})).bitwise_and(kLow);
  };
  const Tensor seed = rng.select(0, 0), step = rng.select(0, 1);
  const Tensor block = places.bitwise_right_shift(at::Scalar(int64_t{2}));
  Tensor c0 = low_word(block), c1 = high_word(block);
  Tensor c2 = low_word(step).expand_as(c0), c3 = high_word(step).expand_as(c0);
  Tensor k0 = low_word(seed).bitwise_xor(site & kLow), k1 = high_word(seed);
  for (int round = 0; round < kRounds; ++round) {
    const Tensor a = c0 * static_cast<int64_t>(kMultiplier0);
    const Tensor b = c2 * static_cast<int64_t>(kMultiplier1);
    c0 = high_word(b).bitwise_xor(c1).bitwise_xor(k0);
    c1 = low_word(b);
    c2 = high_word(a).bitwise_xor(c3).bitwise_xor(k1);
    c3 = low_word(a);
    k0 = low_word(k0 + static_cast<int64_t>(kWeyl0));
    k1 = low_word(k1 + static_cast<int64_t>(kWeyl1));
  }
  const Tensor w = places.bitwise_and(at::Scalar(int64_t{3}));
  return at::where(w < 2, at::where(w == 0, c0, c1), at::where(w == 2, c2, c3));
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
  const Key key = make_key(rng, site);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    drop(flat.const_data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(), runs, key, p);
  });
  return y;
}

}  // namespace medley
