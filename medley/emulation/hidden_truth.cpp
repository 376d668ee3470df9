#include "medley/emulation/hidden_truth.h"

#include <algorithm>
#include <cmath>

#include "medley/base/error.h"

namespace medley {
namespace {

// splitmix64 (https://prng.di.unimi.it/splitmix64.c), public domain.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// In [-1, 1).
double random_at(uint64_t key, int power) {
  return static_cast<double>(mixed(key + mixed(static_cast<uint64_t>(power))) >> 11) * 0x1p-52 - 1;
}

}  // namespace

double HiddenTruth::factor(std::string_view kind, const OpWork& work) const {
  MEDLEY_CHECK(spread >= 0 && spread < 1);
  uint64_t key = mixed(seed);
  for (char c : kind) key = mixed(key ^ static_cast<unsigned char>(c));
  key = mixed(key ^
              (static_cast<uint64_t>(work.work_class) << 8 | static_cast<uint64_t>(work.dtype)));
  int power = 0;
  const double mantissa = std::frexp(std::max({work.work.flops, work.work.bytes, 1.0}), &power);
  const double above = 2 * mantissa - 1;  // in [0, 1)
  return 1 + spread * ((1 - above) * random_at(key, power) + above * random_at(key, power + 1));
}

Nanoseconds HiddenTruth::op_time(const DeviceKind& kind, const OpWork& work) const {
  const Nanoseconds analytic = medley::op_time(kind, work.work_class, work.work, work.dtype);
  return to_nanoseconds(to_seconds(analytic) * factor(kind.name, work));
}

}  // namespace medley
