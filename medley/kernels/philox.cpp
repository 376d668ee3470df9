#include "medley/kernels/philox.h"

#include <ATen/TensorOperators.h>

namespace medley {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;
constexpr int64_t kLow = 0xFFFFFFFF;

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

at::Tensor low(const at::Tensor& value) { return value.bitwise_and(kLow); }
at::Tensor high(const at::Tensor& value) {
  return value.bitwise_right_shift(at::Scalar(int64_t{32})).bitwise_and(kLow);
}

}  // namespace

PhiloxKey philox_key(const at::Tensor& rng, int64_t site) {
  const at::Tensor host = rng.cpu();
  const auto* words = host.const_data_ptr<int64_t>();
  const auto seed = static_cast<uint64_t>(words[0]), step = static_cast<uint64_t>(words[1]);
  return {low(seed) ^ low(static_cast<uint64_t>(site)), high(seed), low(step), high(step)};
}

std::array<uint32_t, 4> philox(const PhiloxKey& key, uint64_t block) {
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

std::array<at::Tensor, 4> philox(const at::Tensor& rng, int64_t site, const at::Tensor& block) {
  const at::Tensor seed = rng.select(0, 0), step = rng.select(0, 1);
  at::Tensor c0 = low(block), c1 = high(block);
  at::Tensor c2 = low(step).expand_as(c0), c3 = high(step).expand_as(c0);
  at::Tensor k0 = low(seed).bitwise_xor(site & kLow), k1 = high(seed);
  for (int round = 0; round < kRounds; ++round) {
    const at::Tensor a = c0 * static_cast<int64_t>(kMultiplier0);
    const at::Tensor b = c2 * static_cast<int64_t>(kMultiplier1);
    c0 = high(b).bitwise_xor(c1).bitwise_xor(k0);
    c1 = low(b);
    c2 = high(a).bitwise_xor(c3).bitwise_xor(k1);
    c3 = low(a);
    k0 = low(k0 + static_cast<int64_t>(kWeyl0));
    k1 = low(k1 + static_cast<int64_t>(kWeyl1));
  }
  return {c0, c1, c2, c3};
}

}  // namespace medley
