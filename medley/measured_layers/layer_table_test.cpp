#include "medley/measured_layers/layer_table.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/testing/sample_tables.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the error for the sample with one text replaced.
std::string message(const std::string& what, const std::string& by) {
  std::string text = print(sample_table());
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  text.replace(at, what.size(), by);
  try {
    (void)parse_layer_table(text, "t.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

TEST(LayerTable, PrintsWhatParsesBackEqual) {
  LayerTable table = sample_table();
  table.run = {3.5, 1.125, Bytes{5'000'000'000}, 2.5, 0.75, 1};
  table.bytes[0].kinds["head"].tied = table.bytes[0].kinds["embedding"].tied = {7};
  EXPECT_EQ(parse_layer_table(print(table), "t.json"), table);
  EXPECT_NE(hash(table), hash(sample_table()));
  table.run = {};
  EXPECT_EQ(parse_layer_table(print(table), "t.json"), table);
  EXPECT_TRUE(is_layer_table(print(table)));
  EXPECT_FALSE(is_layer_table("{\"format\": \"medley-plan\"}"));
}

TEST(LayerTable, SortsItsEntries) {
  LayerTable table = sample_table();
  LayerTable turned = table;
  std::swap(turned.times.front(), turned.times.back());
  std::swap(turned.bytes.front(), turned.bytes.back());
  EXPECT_EQ(parse_layer_table(print(turned), "t.json"), table);
}

TEST(LayerTable, NamesThePlaceOfAMistake) {
  EXPECT_EQ(message("\"version\":1", "\"version\":2"),
            "t.json: version: found 2, expected 1, the only version that this Medley reads");
  EXPECT_THAT(message("\"model\"", "\"modle\""), StartsWith("t.json: "));
  EXPECT_EQ(message("\"rows\":1,", "\"rows\":0,"),
            "t.json: times[0].rows: found 0, expected an integer from 1 to 4294967296");
  EXPECT_EQ(message("[1000000,2000000,1000000]", "[1000000,2000000]"),
            "t.json: times[0].ns.block: found [1000000,2000000], expected nanoseconds of forward, "
            "backward and update");
  EXPECT_THAT(message("[1000000,2000000,1000000]", "[-1,2000000,1000000]"),
              StartsWith("t.json: times[0].ns.block[0]: found -1"));
  EXPECT_THAT(message("\"saved\":1.0", "\"saved\":-1"),
              StartsWith("t.json: run.saved: found -1, expected a number from 0"));
  EXPECT_EQ(message("\"medley\"", "\"megatron\""),
            "t.json: run.runtime: found \"megatron\", expected medley or megatron-deepspeed");
}

TEST(LayerTable, WantsTiedBytesToBeOneTensor) {
  EXPECT_THAT(message("\"output\":1000000", "\"output\":1000000,\"tied\":65000000"),
              StartsWith("t.json: bytes[0].layers.block: found {"));
  LayerTable table = sample_table();
  table.bytes[1].kinds["head"].tied = {7};
  table.bytes[1].kinds["embedding"].tied = {8};
  try {
    (void)parse_layer_table(print(table), "t.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "t.json: bytes: found 8 and 7 tied bytes at tensor_parallel 2, expected as many "
                 "in all layers: they are one tensor");
  }
}

TEST(LayerTable, WantsEveryKindOnceAndNoOther) {
  EXPECT_THAT(message("\"embedding\",\"block\"", "\"embedding\",\"blokc\""), HasSubstr("blokc"));
  EXPECT_THAT(message("\"layers\":[\"embedding\",", "\"layers\":["), HasSubstr("embedding"));
  EXPECT_THAT(message("\"layers\":[", "\"layers\":[\"\","),
              StartsWith("t.json: layers[0]: found \"\""));
}

TEST(LayerTable, WantsEachMeasurementOnceAndItsBytes) {
  EXPECT_EQ(message("\"rows\":1,\"tensor_parallel\":1", "\"rows\":2,\"tensor_parallel\":1"),
            "t.json: times: found fast, tensor_parallel 1, rows 2 twice, expected each once");
  EXPECT_EQ(
      message("\"rows\":1,\"tensor_parallel\":1", "\"rows\":1,\"tensor_parallel\":3"),
      "t.json: times: found fast, tensor_parallel 3, rows 1, expected bytes of that degree as "
      "well");
}

}  // namespace
}  // namespace medley
