#include "medley/program/frame_schedule.h"

#include <gmock/gmock.h>

#include "medley/testing/example_program.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> frames(const FrameSchedule& schedule) {
  std::vector<int> used;
  for (const FrameUse& use : schedule.uses) used.push_back(use.frame);
  return used;
}

// F0 F1 B0 F2 B1 B2 U: the frame of micro-batch 0 is free for 2, that of 1 would be for 3.
TEST(FrameSchedule, FramesAreReused) {
  const ExampleProgram example = data_parallel_program({2}, 3);
  const FrameSchedule schedule = schedule_frames(example.program.stages[0]);
  EXPECT_EQ(schedule.num_frames, 2);
  EXPECT_THAT(frames(schedule), ElementsAre(0, 1, 0, 0, 1, 0, 0));
  EXPECT_TRUE(schedule.uses[1].begins);
  EXPECT_FALSE(schedule.uses[1].ends);
  EXPECT_TRUE(schedule.uses[4].ends);
}

// An assigned value may be read until its frame is returned, so no `dies` names it.
TEST(FrameSchedule, OnlyAssignedValuesAreLeftOfAProgramThatFreesAll) {
  const ExampleProgram example = data_parallel_program({2}, 2);
  const LoweredStage& stage = example.program.stages[0];
  const FrameSchedule schedule = schedule_frames(stage);
  for (size_t i = 0; i + 1 < schedule.uses.size(); ++i)
    EXPECT_THAT(schedule.uses[i].leftovers, IsEmpty());
  EXPECT_THAT(schedule.uses.back().leftovers,
              ElementsAre(find_function(stage, FunctionKind::kUpdate).assigns[0].from));
}

TEST(FrameSchedule, LeftoversAreWhatNoStepFrees) {
  ExampleProgram example = data_parallel_program({2}, 1);
  LoweredStage& stage = example.program.stages[0];
  auto& segment = std::get<Segment>(stage.functions[0].steps[0]);
  segment.dies[0].clear();  // the batch input x
  const FrameSchedule schedule = schedule_frames(stage);
  EXPECT_THAT(schedule.uses[0].leftovers, IsEmpty()) << "backward may still read it";
  EXPECT_THAT(schedule.uses[1].leftovers, ElementsAre(example.x));
}

}  // namespace
}  // namespace medley
