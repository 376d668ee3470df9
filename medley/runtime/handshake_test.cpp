#include "medley/runtime/handshake.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <thread>

#include "medley/base/error.h"
#include "medley/testing/in_memory_store.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Returns each device's error.
std::vector<std::string> shake(const std::vector<NamedHashes>& hashes) {
  InMemoryStore store;
  std::vector<std::string> messages(hashes.size(), "ok");
  std::vector<int> devices;
  for (int i = 0; i < static_cast<int>(hashes.size()); ++i) devices.push_back(i);
  std::vector<std::jthread> threads;
  for (int device : devices)
    threads.emplace_back([&, device] {
      const auto me = at(device);
      try {
        handshake(*store.connect(device), 1, device, devices, hashes[me], milliseconds(10000));
      } catch (const Error& error) {
        messages[me] = error.what();
      }
    });
  threads.clear();
  return messages;
}

const NamedHashes kGood{{"graph", "g1"}, {"plan", "p1"}};

TEST(Handshake, AgreesOnEqualHashes) { EXPECT_THAT(shake({kGood, kGood, kGood}), Each("ok")); }

// The same words everywhere, also on devices that agree with each other.
TEST(Handshake, FirstDifferenceIsNamedOnAllDevices) {
  EXPECT_THAT(
      shake({kGood, kGood, {{"graph", "g1"}, {"plan", "p2"}}, {{"graph", "g2"}, {"plan", "p1"}}}),
      Each("devices 0 and 2 have different plan: p1 and p2"));
}

TEST(Handshake, MissingHashIsADifference) {
  EXPECT_THAT(shake({kGood, {{"graph", "g1"}}}),
              Each("devices 0 and 1 have different plan: p1 and (none)"));
  EXPECT_THAT(shake({{{"graph", "g1"}}, kGood}), Each(HasSubstr("compare different hashes")));
}

TEST(Handshake, MissingDeviceIsNamed) {
  InMemoryStore store;
  try {
    handshake(*store.connect(0), 1, 0, {0, 5}, kGood, milliseconds(10));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kEnvironment);
    EXPECT_THAT(error.what(), HasSubstr("device 5 has not come within 10 ms"));
  }
}

}  // namespace
}  // namespace medley
