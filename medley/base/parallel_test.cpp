#include "medley/base/parallel.h"

#include <gmock/gmock.h>

#include <stdexcept>

namespace medley {
namespace {

using ::testing::Each;

TEST(Parallel, CallsEachOnceInParallelWithAnother) {
  std::vector<int> calls(100);
  int meanwhile = 0;
  for_each_in_parallel_with(
      [&] { ++meanwhile; }, calls.size(), [&](size_t i, const auto&) { ++calls[i]; });
  EXPECT_EQ(meanwhile, 1);
  EXPECT_THAT(calls, Each(1));
}

// A failure in this thread is the reported one.
TEST(Parallel, ErrorOfTheParallelTaskComesFirst) {
  const auto body = [](size_t, const auto&) { throw std::runtime_error("body"); };
  try {
    for_each_in_parallel_with([] { throw std::logic_error("meanwhile"); }, 10, body);
    FAIL();
  } catch (const std::logic_error&) {
  }
  EXPECT_THROW(for_each_in_parallel_with([] {}, 10, body), std::runtime_error);
}

}  // namespace
}  // namespace medley
