#include "medley/boxes/runs.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Heads 1 and 2 of q, k and v: one run each.
TEST(RunsOf, HeadsOfAFusedWeight) {
  EXPECT_EQ(runs_of({3, 4, 2}, {{0, 3}, {1, 3}, {0, 2}}), (Runs{2, 4, {3}, {8}}));
  EXPECT_EQ(runs_of({3, 4, 2}, {{0, 3}, {1, 3}, {0, 2}}, 4), (Runs{8, 16, {3}, {32}}));
}

TEST(RunsOf, WholeInnerDimsAreOneRun) {
  EXPECT_EQ(runs_of({5, 4, 2}, {{1, 3}, {0, 4}, {0, 2}}), (Runs{8, 16, {}, {}}));
  EXPECT_EQ(runs_of({5, 4, 2}, {{1, 2}, {3, 4}, {0, 2}}), (Runs{14, 2, {}, {}}));
  EXPECT_EQ(runs_of({}, {}), (Runs{0, 1, {}, {}}));
}

TEST(RunsOf, WholeOuterDimsAreOneLoop) {
  EXPECT_EQ(runs_of({5, 4, 6}, {{0, 5}, {0, 4}, {1, 2}}), (Runs{1, 1, {20}, {6}}));
  EXPECT_EQ(runs_of({5, 4, 6}, {{1, 3}, {0, 2}, {1, 3}}), (Runs{25, 2, {2, 2}, {24, 6}}));
}

TEST(RunsOf, EmptyRangeHasNoLength) {
  EXPECT_EQ(runs_of({5, 4}, {{1, 3}, {2, 2}}).total(), 0);
  EXPECT_EQ(runs_of({5, 0}, {{0, 5}, {0, 0}}).total(), 0);
}

TEST(RunsOf, RefuseABoxThatIsNotInside) {
  EXPECT_THROW(runs_of({5, 4}, {{1, 6}, {0, 4}}), Error);
  EXPECT_THROW(runs_of({5, 4}, {{-1, 3}, {0, 4}}), Error);
  EXPECT_THROW(runs_of({5, 4}, {{0, 3}, {0, 5}}), Error);
  EXPECT_THROW(runs_of({5, 4}, {{0, 3}}), Error);
}

// The second half of a fused weight's heads, as a device stores it: k and v without q.
TEST(RunsIn, AShardHasOnlyWhatItHas) {
  const FactorSizes factors{3, 4, 2};
  const Box shard{{0, 3}, {2, 4}, {0, 2}};
  EXPECT_EQ(runs_in(factors, shard, factors, {{1, 3}, {2, 4}, {0, 2}}), (Runs{4, 8, {}, {}}));
  EXPECT_EQ(runs_in(factors, shard, factors, {{1, 3}, {3, 4}, {0, 2}}), (Runs{6, 2, {2}, {4}}));
  EXPECT_THROW(runs_in(factors, shard, factors, {{1, 3}, {1, 4}, {0, 2}}), Error);
}

TEST(Split, IntervalsOfAProduct) {
  EXPECT_THAT(split({4, 8}, {3, 4}), ElementsAre(Box{{1, 2}, {0, 4}}));
  EXPECT_THAT(split({3, 9}, {3, 4}),
              ElementsAre(Box{{0, 1}, {3, 4}}, Box{{1, 2}, {0, 4}}, Box{{2, 3}, {0, 1}}));
  EXPECT_THAT(split({5, 6}, {3, 4}), ElementsAre(Box{{1, 2}, {1, 2}}));
  EXPECT_THAT(split({5, 5}, {3, 4}), IsEmpty());
  EXPECT_THAT(split({0, 1}, {}), ElementsAre(Box{}));
}

TEST(Split, EveryIntervalIsFewBoxesInOrder) {
  for (const FactorSizes& finer :
       std::vector<FactorSizes>{{12}, {3, 4}, {5, 7}, {2, 3, 5}, {4, 1, 3}, {2, 2, 3, 2}}) {
    const int64_t elements = product_of(finer);
    const auto most = 2 * finer.size() - 1;
    for (int64_t begin = 0; begin <= elements; ++begin)
      for (int64_t end = begin; end <= elements; ++end) {
        int64_t next = begin;
        const std::vector<Box> boxes = split({begin, end}, finer);
        ASSERT_LE(boxes.size(), most);
        for (const Box& box : boxes) {
          // Neighbours, from the previous end on.
          const Runs runs = runs_of(finer, box);
          ASSERT_EQ(runs, (Runs{next, volume(box), {}, {}}));
          next += runs.length;
        }
        ASSERT_EQ(next, end);
      }
  }
}

}  // namespace
}  // namespace medley
