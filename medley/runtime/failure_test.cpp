#include "medley/runtime/failure.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"

namespace medley {
namespace {

TEST(Failure, IsJson) {
  const Failure failure{3, 1, "forward 2", "gather h", "no \"memory\""};
  EXPECT_EQ(to_json(failure),
            R"({"blame":"environment","call":"forward 2","cause":"no \"memory\"","device":1,)"
            R"("edge":"gather h","generation":3})");
  const Failure of_several{3, {}, "", "", "a and b", Blame::kCaller};
  for (const Failure& each : {failure, of_several})
    EXPECT_EQ(parse_failure(to_json(each), "here"), each);
}

// Other hosts on the network can write to the store.
TEST(Failure, InvalidFailureIsNamed) {
  for (const char* text : {"{not json", "[]", "{\"generation\": 1}"}) {
    try {
      parse_failure(text, "generation/0/failure");
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("store: generation/0/failure: found \""));
    }
  }
}

}  // namespace
}  // namespace medley
