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

// Returns a value in [-1, 1).
double random_at(uint64_t key, uint64_t which) {
  return static_cast<double>(mixed(key + mixed(which)) >> 11) * 0x1p-52 - 1;
}

// Returns an amount of work between these powers of two.
double random_amount(uint64_t key, uint64_t which, double least, double most) {
  const double power = least + (most - least) * (random_at(key, which) + 1) / 2;
  const double whole = std::floor(power);
  return std::ldexp(1 + power - whole, static_cast<int>(whole));  // equal on every machine
}

// The shares of the spread.
constexpr double kLevel = 0.2, kKernel = 0.2, kSaturation = 0.3, kQuantisation = 0.3;
constexpr double kKernelOctaves = 1.4;
constexpr double kLeastHalf = 14, kMostHalf = 26;  // powers of two
constexpr double kLeastWave = 14, kMostWave = 22;

}  // namespace

double HiddenTruth::factor(std::string_view kind, const OpWork& work) const {
  MEDLEY_CHECK(spread >= 0 && spread < 1);
  uint64_t key = mixed(seed);
  for (char c : kind) key = mixed(key ^ static_cast<unsigned char>(c));
  key = mixed(key ^
              (static_cast<uint64_t>(work.work_class) << 8 | static_cast<uint64_t>(work.dtype)));
  const double amount = std::max({work.work.flops, work.work.bytes, 1.0});
  int power = 0;
  const double mantissa = std::frexp(amount, &power);  // in [0.5, 1)
  const double octaves = power + 2 * mantissa + random_at(key, 3);
  const auto kernel = static_cast<uint64_t>(octaves / kKernelOctaves);
  const double half = random_amount(key, 1, kLeastHalf, kMostHalf);
  const double waves = amount / random_amount(key, 2, kLeastWave, kMostWave);
  const double idle = std::min(1.0, std::ceil(waves) / waves - 1);
  return 1 + spread *
                 (kLevel * random_at(key, 0) + kKernel * random_at(key, 100 + kernel) +
                  kSaturation * (half - amount) / (half + amount) + kQuantisation * (2 * idle - 1));
}

Nanoseconds HiddenTruth::op_time(const DeviceKind& kind, const OpWork& work) const {
  const Nanoseconds analytic = medley::op_time(kind, work.work_class, work.work, work.dtype);
  return to_nanoseconds(to_seconds(analytic) * factor(kind.name, work));
}

}  // namespace medley
