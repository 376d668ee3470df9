#include "medley/profile/profile.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "medley/base/error.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read_file() {
  std::ifstream in("tests/data/profile_1.json");
  EXPECT_TRUE(in);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string refusal(const std::string& json) {
  try {
    parse_profile(json, "p.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

OpMeasurement measurement(const std::string& kind, const std::string& key, int64_t time) {
  return {kind,
          {key, key.substr(0, key.find('(')), WorkClass::kMemory, DType::kF32, {0, 64}},
          {time},
          5};
}

Cluster cluster_of(const std::vector<std::string>& kinds) {
  Cluster cluster;
  for (const std::string& name : kinds) {
    NodePool pool;
    pool.name = "pool-of-" + name;
    pool.kind.name = name;
    cluster.pools.push_back(pool);
  }
  return cluster;
}

// The file is written by print(), so it shows the printed form.
TEST(Profile, PrintedTextParsesBackEqual) {
  const Profile profile = parse_profile(read_file(), "p.json");
  EXPECT_EQ(print(profile), read_file());
  EXPECT_EQ(parse_profile(print(profile), "p.json"), profile);
  EXPECT_EQ(parse_profile(print({"null", {}, {}, {}}), "p"), (Profile{"null", {}, {}, {}}));
}

TEST(Profile, ReadsEveryField) {
  const Profile profile = parse_profile(read_file(), "p.json");
  EXPECT_EQ(profile.executor, "aten 2.13.0");
  ASSERT_EQ(profile.ops.size(), 3U);
  EXPECT_EQ(profile.ops[1],
            (OpMeasurement{"A100-40GB",
                           {"aten.mm.default(bf16[96,512], bf16[512,64]) -> bf16[96,64]",
                            "aten.mm.default",
                            WorkClass::kMatmul,
                            DType::kBF16,
                            {6291456, 176128}},
                           {9120},
                           100}));
  EXPECT_EQ(profile.collectives.at(0),
            (CollectiveMeasurement{
                "all_gather", "ring", {"fast/0/0", "slow/0/0"}, {4096, 2048}, {61234}}));
  EXPECT_EQ(profile.overlaps.at(0), (OverlapMeasurement{"A100-40GB", 1.0625}));
}

TEST(Profile, OrderOfTheFileDoesNotMatter) {
  const Profile profile = parse_profile(R"json({"ops": {"x": [
      {"op": "b()", "class": "memory", "dtype": "f32", "bytes": 1, "time_ns": 2, "repetitions": 1},
      {"op": "a()", "class": "memory", "dtype": "f32", "bytes": 1, "time_ns": 1, "repetitions": 1}]
}
, "executor" : "null", "version" : 1, "format" : "medley-profile"
})json",
                                        "p.json");
  EXPECT_EQ(profile.ops.at(0).op.op, "a");
  EXPECT_EQ(profile.ops.at(1).op.op, "b");
}

TEST(Profile, RefusalsNamePlaceFoundAndExpected) {
  const struct {
    std::string from, to, sentence;
  } cases[] = {
      {"\"version\": 1",
       "\"version\": 2",
       "p.json: version: found 2, expected 1, the only version that this Medley reads"},
      {"medley-profile",
       "medley-plan",
       "p.json: format: found \"medley-plan\", expected \"medley-profile\""},
      {"\"aten 2.13.0\"",
       "\"\"",
       "p.json: executor: found \"\", expected the executor and its version"},
      {"\"time_ns\": 9120",
       "\"time_ns\": NaN",
       "p.json: line 8, column 158: syntax error while parsing value - invalid literal; last read: "
       "'\"time_ns\": N', expected JSON"},
      {"\"time_ns\": 9120",
       "\"time_ns\": 0",
       "p.json: ops[\"A100-40GB\"][1].time_ns: found 0, expected whole nanoseconds, at least 1"},
      {"\"time_ns\": 9120",
       "\"time_ns\": -9120",
       "p.json: ops[\"A100-40GB\"][1].time_ns: found -9120, expected whole nanoseconds, at least "
       "1"},
      {"\"time_ns\": 9120",
       "\"time_ns\": 9.5",
       "p.json: ops[\"A100-40GB\"][1].time_ns: found 9.5, expected whole nanoseconds, at least 1"},
      {"\"time_ns\": 9120",
       "\"time_ns\": 1e400",
       "p.json: number overflow parsing '1e400', expected JSON"},
      {"\"flops\": 6291456",
       "\"flops\": -1",
       "p.json: ops[\"A100-40GB\"][1].flops: found -1, expected a number of operations or bytes, "
       "not negative"},
      {"\"class\": \"matmul\"",
       "\"class\": \"view\"",
       "p.json: ops[\"A100-40GB\"][1].class: found \"view\", expected \"matmul\", \"attention\", "
       "\"convolution\" or \"memory\""},
      {"\"dtype\": \"bf16\"",
       "\"dtype\": \"fp16\"",
       "p.json: ops[\"A100-40GB\"][0].dtype: found \"fp16\", expected a dtype, such as \"f32\""},
      {"\"repetitions\": 100}",
       "\"repeats\": 100}",
       "p.json: ops[\"A100-40GB\"][0]: found unknown key \"repeats\", expected one of \"op\", "
       "\"class\", \"dtype\", \"flops\", \"bytes\", \"time_ns\", \"repetitions\""},
      {"\"time_ns\": 9120, ",
       "",
       "p.json: ops[\"A100-40GB\"][1]: found no \"time_ns\", expected one"},
      {"\"bytes\": 24576,",
       "\"bytes\": 24576, \"bytes\": 24576,",
       "p.json: found key \"bytes\" twice in one object, expected it once"},
      {"aten.gelu.default(bf16[96,64], none) -> bf16[96,64]",
       "aten.mm.default(bf16[96,512], bf16[512,64]) -> bf16[96,64]",
       "p.json: ops: found aten.mm.default(bf16[96,512], bf16[512,64]) -> bf16[96,64] of "
       "A100-40GB twice, expected each measurement once"},
      {"aten.gelu.default(bf16[96,64], none) -> bf16[96,64]",
       "gelu",
       "p.json: ops[\"A100-40GB\"][0].op: found \"gelu\", expected an op with its operands: "
       "\"aten.mm.default(f32[2,3], f32[3,4]) -> f32[2,4]\""},
      {"\"lengths\": [4096, 2048]",
       "\"lengths\": [4096]",
       "p.json: collectives[0].lengths: found [4096], expected 2 lengths of all_gather among 2 "
       "devices"},
      {"\"lengths\": [65536]",
       "\"lengths\": [-1]",
       "p.json: collectives[1].lengths[0]: found -1, expected an integer from 0 to "
       "1125899906842624"},
      {"[\"fast/0/0\", \"slow/0/0\"]",
       "[\"fast/0/0\", \"fast/0/0\"]",
       "p.json: collectives[0].devices: found [\"fast/0/0\",\"fast/0/0\"], expected at least two "
       "devices, each once"},
      {"\"A100-40GB\": 1.0625",
       "\"A100-40GB\": 0.5",
       "p.json: overlaps[\"A100-40GB\"]: found 0.5, expected a slowdown from 1 to 1000"},
  };
  for (const auto& [from, to, sentence] : cases)
    EXPECT_EQ(refusal(replaced(read_file(), from, to)), sentence);
}

// Measurements of "new" replace those of "old"; unmatched ones stay.
TEST(Profile, MergeTakesTheLaterOfTwo) {
  const Profile old{
      "null", {measurement("x", "a()", 1), measurement("x", "b()", 2)}, {}, {{"x", 2}}};
  const Profile later{"null",
                      {measurement("x", "b()", 3), measurement("y", "a()", 4)},
                      {{"all_reduce", "ring", {"p", "q"}, {8}, {5}}},
                      {{"x", 3}}};
  const Profile both{
      "null",
      {measurement("x", "a()", 1), measurement("x", "b()", 3), measurement("y", "a()", 4)},
      {{"all_reduce", "ring", {"p", "q"}, {8}, {5}}},
      {{"x", 3}}};
  EXPECT_EQ(merge(old, later), both);
  EXPECT_EQ(merge(both, both), both);
  EXPECT_EQ(merge({}, later), later);
}

TEST(Profile, TimesOfDifferentExecutorsDoNotMix) {
  try {
    merge({"aten 2.12.0", {}, {}, {}}, {"aten 2.13.0", {}, {}, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    EXPECT_THAT(error.what(),
                HasSubstr("found measurements of executor \"aten 2.13.0\", expected"));
  }
}

TEST(Profile, OtherDevicesAreRefused) {
  const Profile profile{"null", {measurement("x", "a()", 1), measurement("y", "a()", 1)}, {}, {}};
  verify(profile, cluster_of({"x"}));
  verify(profile, cluster_of({"y", "x"}));
  try {
    verify(profile, cluster_of({"x", "z"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    EXPECT_STREQ(error.what(),
                 "profile: found op times of x, y, expected those of z (nodes: pool-of-z) too");
  }
}

// Ops are then priced by the cluster.
TEST(Profile, LinkProfileFitsItsLinksOnly) {
  const Profile profile{
      "null", {}, {{"all_gather", "ring", {"pool-of-x/0/0", "pool-of-y/0/0"}, {8, 8}, {5}}}, {}};
  Cluster cluster = cluster_of({"x", "y"});
  cluster.devices = list_devices(cluster.pools);
  verify(profile, cluster);
  cluster = cluster_of({"x", "z"});
  cluster.devices = list_devices(cluster.pools);
  EXPECT_THROW(verify(profile, cluster), Error);
}

// Any change of bytes gives a valid profile or an error.
TEST(Profile, MutatedFilesNeverCrash) {
  const std::string file = read_file();
  const char alphabet[] = "{}[]\",:0123456789.eE+-ntfaNI\\u\n\xff";
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return at(random()) % n; };
  int accepted = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = file;
    for (size_t change = 0, changes = 1 + below(3); change < changes; ++change) {
      const size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = alphabet[below(sizeof(alphabet) - 1)];
          break;
        case 1:
          text.erase(at, 1 + below(20));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(60)));
          break;
        case 3:
          text.resize(at + 1);
          break;
        default:
          text.insert(at, 1, static_cast<char>(below(256)));
      }
    }
    try {
      const Profile profile = parse_profile(text, "p.json");
      EXPECT_EQ(parse_profile(print(profile), "p.json"), profile);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
      EXPECT_THAT(error.what(), StartsWith("p.json: "));
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace medley
