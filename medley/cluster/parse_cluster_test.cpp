#include <gmock/gmock.h>

#include <fstream>
#include <random>
#include <sstream>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"
#include "medley/cluster/prices.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

const Catalogue& catalogue() {
  static const Catalogue kCatalogue = read_catalogue("data/devices");
  return kCatalogue;
}

std::string example() { return read("tests/data/clusters/two_kinds.yaml"); }

TEST(ParseCluster, ReadsTheExample) {
  const Cluster cluster = parse_cluster(example(), "two_kinds.yaml", catalogue());
  std::vector<std::string> names;
  for (const Device& device : cluster.devices) names.push_back(device.name);
  EXPECT_THAT(names, ElementsAre("fast/0/0", "fast/0/1", "slow/0/0", "slow/0/1"));
  EXPECT_EQ(cluster.kind(0), catalogue().at("A100-40GB"));
  EXPECT_DOUBLE_EQ(cluster.kind(2).memory_bytes, 16.0 * (1 << 30));
  EXPECT_TRUE(cluster.pools[1].preemptible);
  EXPECT_DOUBLE_EQ(cluster.pools[1].price_per_hour, 2.10);
  EXPECT_TRUE(cluster.networks[0].inside_node);
  EXPECT_DOUBLE_EQ(cluster.networks[1].bandwidth, 1.25e9);
  EXPECT_THAT(cluster.networks[1].connects, ElementsAre("fast", "slow"));
  EXPECT_EQ(find_device(cluster, "slow/0/1"), 3);
  EXPECT_EQ(find_device(cluster, "slow/1/1"), std::nullopt);
}

// `speed: 0.5` doubles all times, launches included; memory stays.
TEST(ParseCluster, SpeedScalesAllTimes) {
  const Cluster cluster = parse_cluster(example(), "two_kinds.yaml", catalogue());
  const DeviceKind &fast = cluster.kind(0), &half = cluster.kind(2);
  EXPECT_EQ(half.name, "half");
  EXPECT_EQ(half.base, fast.name);
  EXPECT_DOUBLE_EQ(half.sustained.at(DType::kBF16), fast.sustained.at(DType::kBF16) / 2);
  EXPECT_DOUBLE_EQ(half.memory_bandwidth, fast.memory_bandwidth / 2);
  EXPECT_DOUBLE_EQ(half.launch_latency, fast.launch_latency * 2);
}

TEST(ParseCluster, AKindMaySayWhatStandsInForBf16) {
  const auto parsed = [](const std::string& as) {
    return parse_cluster(
        "format: medley-cluster\nversion: 1\nnodes:\n"
        "  - {name: a, count: 1, device: old, devices_per_node: 1}\n"
        "devices:\n  old: {based_on: CPU" +
            as + "}\n",
        "c.yaml",
        catalogue());
  };
  EXPECT_EQ(parsed("").kind(0).bf16_as, DType::kBF16);
  EXPECT_EQ(parsed(", bf16_as: f16").kind(0).bf16_as, DType::kF16);
  EXPECT_NE(hash(parsed("")), hash(parsed(", bf16_as: f16")));
  EXPECT_THAT([&] { parsed(", bf16_as: i8"); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
                  "c.yaml:6: devices.old.bf16_as: expected bf16, f16 or f32: i8")));
}

TEST(ParseCluster, TheDemoClusterIsTwoToOne) {
  const Cluster cluster =
      parse_cluster(read("tests/data/clusters/demo.yaml"), "demo.yaml", catalogue());
  ASSERT_EQ(cluster.devices.size(), 4);
  EXPECT_EQ(scaled(cluster.kind(0), 0.5).sustained, cluster.kind(3).sustained);
}

TEST(ParseCluster, HashChangesWithContentOnly) {
  const Cluster cluster = parse_cluster(example(), "a.yaml", catalogue());
  const std::string comment = "# a comment\n" + example();
  EXPECT_EQ(hash(cluster), hash(parse_cluster(comment, "b.yaml", catalogue())));
  Cluster other = cluster;
  other.networks[1].latency *= 2;
  EXPECT_NE(hash(cluster), hash(other));
  other = cluster;
  other.pools[1].kind.memory_bytes += 1;
  EXPECT_NE(hash(cluster), hash(other));
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = example();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// Returns the error about a cluster file, or "accepted".
std::string refusal(const std::string& text) {
  try {
    parse_cluster(text, "c.yaml", catalogue());
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

std::string message(const std::string& from, const std::string& to) {
  return refusal(replaced(from, to));
}

TEST(ParseCluster, NamesFileLineAndPlaceOfAMistake) {
  EXPECT_EQ(message("slow, count: 1", "slow, count: -3"),
            "c.yaml:5: nodes[1].count: must be positive: -3");
  EXPECT_EQ(message("slow, count: 1", "slow, count: 1.5"),
            "c.yaml:5: nodes[1].count: expected a whole number: 1.5");
  EXPECT_EQ(message("slow, count: 1", "slow, count: 99999"),
            "c.yaml:5: nodes[1].count: must be at most 65536: 99999");
  EXPECT_EQ(message("slow, count: 1", "slow, count: 99999999999999999999"),
            "c.yaml:5: nodes[1].count: must be at most 65536: 99999999999999999999");
  EXPECT_EQ(message("latency: 50 us", "latency: 1e30 s"),
            "c.yaml:8: networks[1].latency: must be at most 3600 s");
  EXPECT_EQ(message("slow, count: 1", "slow, count:"), "c.yaml:5: nodes[1].count: has no value");
  EXPECT_THAT(message("slow, count: 1", "slow, cuont: 1"),
              StartsWith("c.yaml:5: nodes[1].cuont: unknown key"));
  EXPECT_EQ(message("slow, count: 1, ", "slow, "), "c.yaml:5: nodes[1]: key is missing: count");
  EXPECT_EQ(message("slow, count: 1", "slow, count: 1, count: 2"),
            "c.yaml:5: nodes[1]: key stands twice: count");
  EXPECT_EQ(message("name: slow", "name: fast"),
            "c.yaml:5: nodes[1].name: name stands twice: fast");
  EXPECT_THAT(message("name: slow", "name: s/w"),
              StartsWith("c.yaml:5: nodes[1].name: expected a name"));
  EXPECT_EQ(message("preemptible: true", "preemptible: yes"),
            "c.yaml:5: nodes[1].preemptible: expected true or false: yes");
  EXPECT_EQ(message("2.10", "-2.10"),
            "c.yaml:5: nodes[1].price_per_hour: must not be negative: -2.10");
  EXPECT_EQ(message("version: 1", "version: 2"), "c.yaml:2: version: expected 1: 2");
  EXPECT_EQ(message("medley-cluster", "medley-plan"),
            "c.yaml:1: format: expected medley-cluster: medley-plan");
}

// A node costs its own price, else its devices'; a preemptible one pays the spot price.
TEST(ParseCluster, PricesAreOfNodesOrOfTheirDevices) {
  const auto price = [](const std::string& devices) {
    const std::string text =
        replaced(", price_per_hour: 2.10", "") + "  other: {based_on: T4, price_per_hour: 9}\n";
    const size_t at = text.find("memory: 16 GiB");
    return parse_cluster(text.substr(0, at) + devices + text.substr(at), "c.yaml", catalogue())
        .pools[1]
        .price_per_hour;
  };
  EXPECT_DOUBLE_EQ(price(""), 0);
  EXPECT_DOUBLE_EQ(price("price_per_hour: 1.5, "), 3);
  EXPECT_DOUBLE_EQ(price("price_per_hour: 1.5, spot_price_per_hour: 0, "), 0);
  EXPECT_DOUBLE_EQ(price("price_per_hour: 1.5, spot_price_per_hour: 0.5, "), 1);
  const Cluster cluster =
      parse_cluster(replaced("16 GiB", "16 GiB, price_per_hour: 7"), "c.yaml", catalogue());
  EXPECT_DOUBLE_EQ(cluster.pools[1].price_per_hour, 2.10);
}

TEST(ParseCluster, WrongPricesAreNamed) {
  EXPECT_EQ(message("2.10", "nan"), "c.yaml:5: nodes[1].price_per_hour: expected a number: nan");
  EXPECT_EQ(message("2.10", "2 EUR"),
            "c.yaml:5: nodes[1].price_per_hour: expected a number: 2 EUR");
  EXPECT_EQ(message("2.10", "1e10"),
            "c.yaml:5: nodes[1].price_per_hour: must be at most 1000000000");
  EXPECT_EQ(message("16 GiB", "16 GiB, price_per_hour: -1"),
            "c.yaml:10: devices.half.price_per_hour: must not be negative: -1");
  EXPECT_EQ(message("16 GiB", "16 GiB, price_per_hour: 1, spot_price_per_hour: inf"),
            "c.yaml:10: devices.half.spot_price_per_hour: expected a number: inf");
  EXPECT_EQ(message("16 GiB", "16 GiB, spot_price_per_hour: 1"),
            "c.yaml:10: devices.half.spot_price_per_hour: needs a price_per_hour beside it");
}

TEST(ParseCluster, NamesDevicesWithoutPrice) {
  const auto unpriced = [](const std::string& text) -> std::string {
    try {
      parse_priced_cluster(text, "c.yaml", catalogue());
    } catch (const Error& error) {
      return error.what();
    }
    return "all have";
  };
  EXPECT_EQ(
      unpriced(example()),
      "c.yaml:4: nodes[0]: has no price, expected price_per_hour of the node or of its device; "
      "0 for what is free");
  const std::string own =
      replaced("devices_per_node: 2}", "devices_per_node: 2, price_per_hour: 0}");
  EXPECT_EQ(unpriced(own), "all have");
  EXPECT_EQ(
      unpriced(replaced("device: A100-40GB, devices", "device: half, devices")),
      "c.yaml:4: nodes[0]: has no price, expected price_per_hour of the node or of its device; "
      "0 for what is free");
}

TEST(ParseCluster, ReadsCurves) {
  const auto with = [](const std::string& curves) {
    return parse_cluster(
        replaced("latency: 50 us", "latency: 50 us, curves: " + curves), "c.yaml", catalogue());
  };
  const Cluster cluster = with("[{devices: 1, points: [[1 MiB, 1 GB/s], [4 MB, 2 GB/s]]}]");
  const MessageCurve expected{1, {{1 << 20, 1e9}, {4'000'000, 2e9}}};
  EXPECT_THAT(cluster.networks[1].curves, ElementsAre(expected));
  EXPECT_NE(hash(cluster), hash(parse_cluster(example(), "c.yaml", catalogue())));
  const auto wrong = [](const std::string& curves) {
    return message("latency: 50 us", "latency: 50 us, curves: " + curves);
  };
  const std::string place = "c.yaml:8: networks[1].curves[0].points";
  EXPECT_EQ(wrong("[{devices: 1, points: []}]"),
            place + ": expected at least one point: an empty list");
  EXPECT_EQ(wrong("[{devices: 1, points: [[2 MB, 1 GB/s], [1 MB, 2 GB/s]]}]"),
            place + "[1]: sizes must ascend");
  EXPECT_EQ(wrong("[{devices: 1, points: [[1 MB, 1 GB/s], [2 MB, 9 GB/s]]}]"),
            place + "[1]: takes less time than the shorter message before it");
  EXPECT_EQ(wrong("[{devices: 1, points: [[1 MB]]}]"),
            place + "[0]: expected a size and a bandwidth: [1 MiB, 11.7 GB/s]");
  const std::string point = "points: [[1 MB, 1 GB/s]]";
  EXPECT_EQ(wrong("[{devices: 2, " + point + "}, {devices: 1, " + point + "}]"),
            "c.yaml:8: networks[1].curves[1]: numbers of devices must ascend");
}

TEST(ParseCluster, ChecksNetworks) {
  EXPECT_EQ(message("10 Gbit/s", "-3"), "c.yaml:8: networks[1].bandwidth: must be positive: -3");
  EXPECT_EQ(message("10 Gbit/s", "10 Gb/s"),
            "c.yaml:8: networks[1].bandwidth: expected a bandwidth such as \"300 GB/s\" or \"10 "
            "Gbit/s\": 10 Gb/s");
  EXPECT_EQ(message("50 us", "-1 us"),
            "c.yaml:8: networks[1].latency: must not be negative: -1 us");
  EXPECT_EQ(message("50 us", "0 us"), "accepted");
  EXPECT_EQ(message("[fast, slow]", "[fast, solw]"),
            "c.yaml:8: networks[1].connects[1]: unknown node pool: solw (known: fast, slow)");
  EXPECT_EQ(message("[fast, slow]", "[fast, fast]"),
            "c.yaml:8: networks[1].connects[1]: node pool stands twice: fast");
  EXPECT_EQ(message("[fast, slow]", "[]"),
            "c.yaml:8: networks[1].connects: expected at least one node pool: an empty list");
  EXPECT_EQ(message("connects: [fast, slow], ", ""),
            "c.yaml:8: networks[1]: expected one of: inside, connects");
  EXPECT_EQ(message("inside: node", "inside: rack"),
            "c.yaml:7: networks[0].inside: expected node: rack");
  EXPECT_EQ(message("inside: node", "inside: node, pools: [fast]"), "accepted");
  EXPECT_EQ(message("inside: node", "inside: node, trunk: 1 GB/s"),
            "c.yaml:7: networks[0].trunk: needs connects with two node pools or more");
  EXPECT_EQ(message("50 us", "50 us, trunk: 1 GB/s"), "accepted");
  EXPECT_EQ(message("50 us", "50 us, flows: two"),
            "c.yaml:8: networks[1].flows: expected all or one: two");
}

// A cluster of one device has no networks: `networks:` without a value reads as an absent key. The
// same holds for each list or mapping that may be empty.
TEST(ParseCluster, AKeyWithoutValueIsAnEmptyListOrMapping) {
  const std::string one =
      "format: medley-cluster\nversion: 1\nnodes:\n"
      "  - {name: a, count: 1, device: A100-40GB, devices_per_node: 1}\n";
  const Cluster cluster = parse_cluster(one, "c.yaml", catalogue());
  for (const char* more : {"networks:\n",
                           "networks: []\n",
                           "networks: ~\n",
                           "devices:\n",
                           "devices: {}\nnetworks:\n",
                           "devices:\n  A100-40GB:\n",
                           "devices: {A100-40GB: {peak: , sustained: }}\n"})
    EXPECT_EQ(parse_cluster(one + more, "c.yaml", catalogue()), cluster) << more;
  EXPECT_EQ(message("latency: 50 us", "latency: 50 us, curves: "), "accepted");
}

TEST(ParseCluster, AKeyWithoutValueIsRefusedWhereOneIsNeeded) {
  EXPECT_EQ(message("based_on: A100-40GB, speed: 0.5, memory: 16 GiB", ""),
            "c.yaml:10: devices.half: a kind that is based on none needs: sustained");
  EXPECT_EQ(message("connects: [fast, slow]", "connects: "),
            "c.yaml:8: networks[1].connects: expected at least one node pool: an empty list");
  EXPECT_EQ(message("inside: node", "inside: node, pools: "),
            "c.yaml:7: networks[0].pools: expected at least one node pool: an empty list");
  EXPECT_EQ(message("50 us", "50 us, curves: [{devices: 1, points: }]"),
            "c.yaml:8: networks[1].curves[0].points: expected at least one point: an empty list");
  EXPECT_EQ(message("bandwidth: 10 Gbit/s", "bandwidth: "),
            "c.yaml:8: networks[1].bandwidth: has no value");
  EXPECT_EQ(message("speed: 0.5", "speed: "), "c.yaml:10: devices.half.speed: has no value");
  EXPECT_EQ(message("preemptible: true", "preemptible: "),
            "c.yaml:5: nodes[1].preemptible: has no value");
  EXPECT_EQ(message("version: 1", "version: "), "c.yaml:2: version: has no value");
  EXPECT_EQ(refusal("format: medley-cluster\nversion: 1\nnodes:\n"),
            "c.yaml:3: nodes: expected at least one entry: an empty list");
  EXPECT_THAT(refusal("format: medley-cluster\nversion: 1\nnodes: [~]\n"),
              ::testing::HasSubstr("expected a mapping: nothing"));
}

// A cluster file gives the concurrent flows of a node's devices; the default is `all`.
TEST(ParseCluster, ReadsFlows) {
  const auto parsed = [](const std::string& flows) {
    std::string text = example();
    text.replace(text.find("50 us"), 5, "50 us" + flows);
    return parse_cluster(text, "c.yaml", catalogue());
  };
  EXPECT_FALSE(parsed("").networks[1].one_flow);
  EXPECT_EQ(parsed(", flows: all"), parsed(""));
  EXPECT_TRUE(parsed(", flows: one").networks[1].one_flow);
  EXPECT_NE(hash(parsed(", flows: one")), hash(parsed("")));
}

TEST(ParseCluster, ChecksDeviceKinds) {
  EXPECT_EQ(message("device: half", "device: hlaf"),
            "c.yaml:5: nodes[1].device: unknown device type: hlaf (near: half; `medley list "
            "devices` shows all)");
  EXPECT_EQ(message("device: half", "device: abacus"),
            "c.yaml:5: nodes[1].device: unknown device type: abacus (`medley list devices` shows "
            "all)");
  EXPECT_EQ(message("device: half", "device: A100"),
            "c.yaml:5: nodes[1].device: A100 may be any of these, say which: A100-40GB, A100-80GB");
  EXPECT_EQ(message("device: half", "device: nvidia a100 80gb"), "accepted");
  EXPECT_THAT(message("based_on: A100-40GB", "based_on: A1"),
              StartsWith("c.yaml:10: devices.half.based_on: unknown device type: A1"));
  EXPECT_THAT(message("based_on: A100-40GB", "based_on: half"),
              StartsWith("c.yaml:10: devices.half.based_on: unknown device type: half"));
  EXPECT_EQ(message("half: {", "a: {based_on: b}\n  b: {based_on: a}\n  half: {"),
            "c.yaml:11: devices.b.based_on: device type is based on itself: a");
  EXPECT_EQ(message("based_on: A100-40GB, ", ""),
            "c.yaml:10: devices.half: a kind that is based on none needs: sustained");
  EXPECT_EQ(message("speed: 0.5", "speed: 0"),
            "c.yaml:10: devices.half.speed: must be positive: 0");
  EXPECT_EQ(
      message("speed: 0.5", "sustained: {f33: 1 Tflop/s}"),
      "c.yaml:10: devices.half.sustained.f33: unknown dtype, expected f64, f32, f16, bf16, ...");
  EXPECT_EQ(message("half: {", "A100-40GB: {memory: 38 GiB}\n  half: {"), "accepted");
}

TEST(ParseCluster, AnOverrideKeepsTheRestOfTheKind) {
  const std::string text = example() + "  A100-40GB: {memory: 38 GiB}\n";
  const Cluster cluster = parse_cluster(text, "c.yaml", catalogue());
  EXPECT_DOUBLE_EQ(cluster.kind(0).memory_bytes, 38.0 * (1 << 30));
  EXPECT_EQ(cluster.kind(0).sustained, catalogue().at("A100-40GB").sustained);
}

TEST(ParseCluster, RefusesWhatIsNotOneDocument) {
  for (const char* text : {"",
                           "# nothing\n",
                           "a: 1\n---\nb: 2\n",
                           "[1, 2",
                           "\t- x",
                           "nodes: [{]",
                           "a: &x [*x]",
                           ",=",
                           "a: 1\n---\n,",
                           "- 1",
                           "3",
                           "? [a]\n: b",
                           "\xff\xfe"})
    EXPECT_THROW(parse_cluster(text, "c.yaml", catalogue()), Error) << text;
  EXPECT_THROW(parse_cluster(std::string(100000, '['), "c.yaml", catalogue()), Error);
  EXPECT_THROW(parse_cluster(std::string(2 << 20, ' '), "c.yaml", catalogue()), Error);
}

// Any mutation of a file gives a cluster or Error(kCaller).
TEST(ParseCluster, SurvivesMutations) {
  std::mt19937 random(1);
  const std::vector<std::string> seeds{example(), read("tests/data/clusters/demo.yaml")};
  const std::string alphabet = "{}[]:,-&*#?!|>%@`'\"~ \n\t0a.";
  int accepted = 0;
  for (int run = 0; run < 3000; ++run) {
    std::string text = seeds[run % 2];
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      const size_t length = std::min<size_t>(random() % 8, text.size() - at);
      switch (random() % 4) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.erase(at, std::min(length, text.size() - 1));
          break;
        case 2:
          text.insert(random() % text.size(), text.substr(at, length));
          break;
        case 3:
          text[at] = static_cast<char>(random() % 256);
          break;
      }
    }
    try {
      hash(parse_cluster(text, "c.yaml", catalogue()));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what() << "\n" << text;
      EXPECT_THAT(error.what(), StartsWith("c.yaml:")) << text;
    }
  }
  EXPECT_GT(accepted, 100);  // edits of comments and names
}

}  // namespace
}  // namespace medley
