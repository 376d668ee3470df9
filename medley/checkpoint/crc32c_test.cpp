#include "medley/checkpoint/crc32c.h"

#include <gmock/gmock.h>

#include <string>

#include "medley/base/at.h"

namespace medley {
namespace {

// The examples of RFC 3720, B.4.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, GoesOnWhereItStopped) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += static_cast<char>(i * 37);
  for (int cut = 0; cut <= 100; ++cut)
    EXPECT_EQ(crc32c(bytes.substr(at(cut)), crc32c(bytes.substr(0, at(cut)))), crc32c(bytes));
}

TEST(Crc32c, SeesEveryBit) {
  const std::string bytes(40, 'x');
  for (size_t i = 0; i < 8 * bytes.size(); ++i) {
    std::string other = bytes;
    other[i / 8] = static_cast<char>(other[i / 8] ^ 1 << i % 8);
    EXPECT_NE(crc32c(other), crc32c(bytes));
  }
}

}  // namespace
}  // namespace medley
