#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;

std::vector<std::string> names(const Catalogue& catalogue) {
  std::vector<std::string> result;
  for (const auto& [name, kind] : catalogue) result.push_back(name);
  return result;
}

const Catalogue& ours() {
  static const Catalogue catalogue = read_catalogue("data/devices");
  return catalogue;
}
// Returns all device types except CPU.
Catalogue cards() {
  Catalogue catalogue = ours();
  catalogue.erase("CPU");
  return catalogue;
}
double gigabytes(const std::string& name) { return std::stod(name.substr(name.rfind('-') + 1)); }

TEST(Catalogue, HoldsTheDevicesThatPeopleHave) {
  EXPECT_GE(ours().size(), 40u);
  EXPECT_THAT(names(ours()),
              IsSupersetOf({"CPU",
                            "GTX1080Ti-11GB",
                            "RTX2080Ti-11GB",
                            "RTX3090-24GB",
                            "RTX4090-24GB",
                            "RTX5090-32GB",
                            "A10G-24GB",
                            "L40S-48GB",
                            "T4-16GB",
                            "P40-24GB",
                            "V100-16GB",
                            "A100-80GB",
                            "H100-80GB",
                            "B200-180GB",
                            "MI300X-192GB"}));
}

// The name ends in the vendor's gigabytes; usable memory is 90 % to 110 % of that.
TEST(Catalogue, MemoryAgreesWithTheName) {
  for (const auto& [name, kind] : cards()) {
    EXPECT_GT(kind.memory_bytes, 0.9 * gigabytes(name) * 1e9) << name;
    EXPECT_LT(kind.memory_bytes, 1.1 * gigabytes(name) * 1e9) << name;
  }
}

TEST(Catalogue, EveryKindComputesInAllFloatingTypes) {
  for (const auto& [name, kind] : ours())
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16})
      EXPECT_TRUE(kind.sustained.contains(dtype)) << name;
}

// No 16-bit dtype is slower than f32 (it could be computed as f32). The fastest tensor cores reach
// 31 times f32 (GB200), and f64 is never faster.
TEST(Catalogue, RatesOfTypesAgree) {
  for (const auto& [name, kind] : ours())
    for (const auto* rates : {&kind.peak, &kind.sustained}) {
      const double f32 = rates->at(DType::kF32);
      for (DType half : {DType::kF16, DType::kBF16}) {
        EXPECT_GE(rates->at(half), f32) << name;
        EXPECT_LE(rates->at(half), 32 * f32) << name;
      }
      EXPECT_LE(rates->at(DType::kBF16), rates->at(DType::kF16)) << name;
      EXPECT_LE(rates->at(DType::kF64), f32) << name;
      EXPECT_GE(rates->at(DType::kF64), f32 / 70) << name;
    }
}

// f16 pays only with tensor cores; bf16 that is no faster than f32 is unsupported.
TEST(Catalogue, KindsWithoutBf16SayWhatStandsInForIt) {
  for (const auto& [name, kind] : cards()) {
    const double f32 = kind.peak.at(DType::kF32);
    EXPECT_EQ(kind.bf16_as == DType::kBF16, kind.peak.at(DType::kBF16) > f32) << name;
    if (kind.bf16_as == DType::kF16) EXPECT_GE(kind.peak.at(DType::kF16), 3.9 * f32) << name;
  }
  EXPECT_EQ(ours().at("V100-16GB").bf16_as, DType::kF16);
  EXPECT_EQ(ours().at("T4-16GB").bf16_as, DType::kF16);
  EXPECT_EQ(ours().at("P100-16GB").bf16_as, DType::kF32);
}

// Kernels of CPUs reserve nothing.
TEST(Catalogue, CardsSayWhatTheirKernelsKeep) {
  constexpr double kMiB = 1 << 20;
  for (const auto& [name, kind] : cards()) {
    EXPECT_GE(kind.workspace_bytes, 9 * kMiB) << name;
    EXPECT_LE(kind.workspace_bytes, 0.008 * kind.memory_bytes) << name;
  }
  EXPECT_EQ(ours().at("H200-141GB").workspace_bytes, 33 * kMiB);
  EXPECT_EQ(ours().at("CPU").workspace_bytes, 0);
}

// A folder of device types may have a link without end.
TEST(Catalogue, IsReadFromFilesOnly) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "kinds";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink("/dev/zero", folder / "endless.json");
  EXPECT_THAT([&] { read_catalogue(folder); },
              ThrowsMessage<Error>(HasSubstr("endless.json: found a device, expected a file")));
}

TEST(Catalogue, LargeProductsReachHalfOfThePeakOrMore) {
  for (const auto& [name, kind] : ours())
    for (const auto& [dtype, rate] : kind.sustained)
      EXPECT_GE(rate, 0.5 * kind.peak.at(dtype)) << name << " " << to_string(dtype);
}

// GeForce GPUs multiply with f32 accumulation, as training does, at half the rate of f16
// accumulation: four times f32 on Turing, twice on later ones. Vendors print the other figure, or
// twice that for sparse matrices.
TEST(Catalogue, GeForceTensorCoresAccumulateInF32) {
  for (const auto& [name, kind] : ours()) {
    const bool turing = name.starts_with("RTX20");
    const bool later =
        name.starts_with("RTX30") || name.starts_with("RTX40") || name.starts_with("RTX50");
    if (turing || later)
      EXPECT_NEAR(kind.peak.at(DType::kF16) / kind.peak.at(DType::kF32), turing ? 4 : 2, 0.01)
          << name;
  }
}

// GPUs with stacked memory (HBM) do 8 to 45 f32 operations per byte, the others 15 to 150.
TEST(Catalogue, BandwidthIsWithinAFactorOfItsKin) {
  const std::vector<std::string> stacked = {
      "P100", "V100", "A100", "A800", "A30-", "H", "GH", "B200", "GB200", "MI"};
  for (const auto& [name, kind] : cards()) {
    const double flop_per_byte = kind.peak.at(DType::kF32) / kind.memory_bandwidth;
    const bool is_stacked = std::any_of(
        stacked.begin(), stacked.end(), [&](const auto& start) { return name.starts_with(start); });
    EXPECT_GE(flop_per_byte, is_stacked ? 8 : 15) << name;
    EXPECT_LE(flop_per_byte, is_stacked ? 45 : 150) << name;
  }
}

// Links range from a quarter of PCIe 4.0 x16 to NVLink 5, and none is faster than memory.
TEST(Catalogue, EveryCardHasALink) {
  for (const auto& [name, kind] : cards()) {
    ASSERT_TRUE(kind.link.has_value()) << name;
    EXPECT_GE(*kind.link, 8e9) << name;
    EXPECT_LE(*kind.link, 900e9) << name;
    EXPECT_LT(*kind.link, kind.memory_bandwidth) << name;
  }
}

// Among variants of one GPU, more memory is never slower memory.
TEST(Catalogue, VariantsOfOneCardAgree) {
  for (const auto& [name, kind] : cards())
    for (const auto& [other, its] : cards())
      if (name < other && name.substr(0, name.rfind('-')) == other.substr(0, other.rfind('-'))) {
        const bool less = gigabytes(name) < gigabytes(other);
        EXPECT_LE((less ? kind : its).memory_bandwidth, (less ? its : kind).memory_bandwidth)
            << name << " " << other;
      }
}

std::string message(const std::string& json) {
  try {
    parse_device_kind(json, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

std::string device(
    const std::string& memory,
    const std::string& sustained = R"("f32": {"value": "1 Tflop/s", "source": "s"})") {
  return R"({"format": "medley-device", "version": 1, "name": "x",
    "peak": {"f32": {"value": "2 Tflop/s", "source": "s"}}, "sustained": {)" +
         sustained + R"(}, "memory": )" + memory + R"(,
    "memory_bandwidth": {"value": "1 GB/s", "source": "s"}, "launch_latency": {"value": "1 us", "source": "s"}})";
}

TEST(Catalogue, NamesFileAndPlaceOfAMistake) {
  EXPECT_EQ(message(device(R"({"value": "1 GiB", "source": "s"})")), "accepted");
  EXPECT_EQ(message(device(R"({"value": "1 GiB"})")), "x.json: memory.source: is missing");
  EXPECT_THAT(message(device(R"({"value": "1", "source": "s"})")),
              HasSubstr("x.json: memory.value: expected an amount of memory"));
  EXPECT_EQ(message(device(R"({"value": "-1 GiB", "source": "s"})")),
            "x.json: memory.value: must be positive: -1 GiB");
  EXPECT_EQ(message(device(R"({"value": "1 GiB", "source": "s"})",
                           R"("f32": {"value": "3 Tflop/s", "source": "s"})")),
            "x.json: sustained.f32: is above the peak");
  EXPECT_EQ(message("{\n\n\"a\": }"), "x.json:3: not JSON");
  EXPECT_EQ(message(R"({"fromat": 1})"), "x.json: fromat: unknown key");
  EXPECT_EQ(message("[]"), "x.json: expected an object");
}

}  // namespace
}  // namespace medley
