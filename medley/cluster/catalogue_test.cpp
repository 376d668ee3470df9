#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names(const Catalogue& catalogue) {
  std::vector<std::string> result;
  for (const auto& [name, kind] : catalogue) result.push_back(name);
  return result;
}

TEST(Catalogue, HoldsTheDevicesThatWePromise) {
  EXPECT_THAT(names(read_catalogue("data/devices")),
              UnorderedElementsAre("V100-16GB",
                                   "V100-32GB",
                                   "P100-16GB",
                                   "T4-16GB",
                                   "RTX4090-24GB",
                                   "A100-40GB",
                                   "A100-80GB",
                                   "H20-96GB",
                                   "H800-80GB",
                                   "H100-80GB",
                                   "H200-141GB",
                                   "GH200-96GB",
                                   "CPU"));
}

// The name ends in the vendor's gigabytes; what programs can use is between 90 % and 110 % of that.
TEST(Catalogue, MemoryAgreesWithTheName) {
  for (const auto& [name, kind] : read_catalogue("data/devices")) {
    if (name == "CPU") continue;
    const double gigabytes = std::stod(name.substr(name.find('-') + 1));
    EXPECT_GT(kind.memory_bytes, 0.9 * gigabytes * 1e9) << name;
    EXPECT_LT(kind.memory_bytes, 1.1 * gigabytes * 1e9) << name;
  }
}

TEST(Catalogue, EveryKindComputesInAllFloatingTypes) {
  for (const auto& [name, kind] : read_catalogue("data/devices"))
    for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16})
      EXPECT_TRUE(kind.sustained.contains(dtype)) << name;
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
