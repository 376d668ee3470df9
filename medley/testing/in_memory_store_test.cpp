#include "medley/testing/in_memory_store.h"

#include <gmock/gmock.h>

#include <thread>

#include "medley/base/error.h"

namespace medley {
namespace {

using std::chrono::milliseconds;

TEST(InMemoryStore, FirstValueStays) {
  InMemoryStore store;
  auto a = store.connect(0), b = store.connect(1);
  EXPECT_EQ(a->get("key"), std::nullopt);
  EXPECT_EQ(a->set_first("key", "a"), "a");
  EXPECT_EQ(b->set_first("key", "b"), "a");
  b->set("key", "c");
  EXPECT_EQ(a->get("key"), "c");
}

TEST(InMemoryStore, WaitsForOthers) {
  InMemoryStore store;
  auto a = store.connect(0), b = store.connect(1);
  std::jthread setter([&] { b->set("key", "value"); });
  EXPECT_EQ(a->wait("key", milliseconds(10000)), "value");
  EXPECT_THROW(a->wait("other", milliseconds(1)), Error);
}

TEST(InMemoryStore, LosesAMember) {
  InMemoryStore store;
  auto a = store.connect(0), b = store.connect(1);
  std::jthread waiter([&] { EXPECT_THROW(b->wait("key", milliseconds(60000)), Error); });
  store.lose(1);
  EXPECT_THROW(b->set("key", "value"), Error);
  EXPECT_EQ(a->get("key"), std::nullopt);
}

}  // namespace
}  // namespace medley
