#include "medley/runtime/pulse.h"

#include <gtest/gtest.h>

#include "medley/testing/in_memory_store.h"

namespace medley {
namespace {

using std::chrono::milliseconds;

TEST(Pulse, BeatsUntilItEnds) {
  InMemoryStore store;
  const auto reader = store.connect(1);
  {
    const Pulse pulse(store.connect(0), "pulse", milliseconds(1));
    const std::string first = reader->wait("pulse", std::chrono::seconds(30));
    for (int i = 0; i < 30000 && reader->get("pulse") == first; ++i)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_NE(reader->get("pulse"), first);
  }
  const auto last = reader->get("pulse");
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(reader->get("pulse"), last);
}

TEST(Pulse, EndsWithTheStore) {
  InMemoryStore store;
  store.lose(0);
  const Pulse pulse(store.connect(0), "pulse", std::chrono::minutes(1));
  EXPECT_EQ(store.connect(1)->get("pulse"), std::nullopt);
}

}  // namespace
}  // namespace medley
