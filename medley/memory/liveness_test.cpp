#include "medley/memory/liveness.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/memory/memory.h"
#include "medley/program/walk.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

void load(const LoweredStage& stage, Liveness& live) {
  for (const Input& input : stage.graph.inputs)
    if (stage.lifetimes[at(input.value)] == Lifetime::kRun) live.write(input.value);
}

void make_step(const LoweredStage& stage, Liveness& live) {
  walk(stage,
       Visitor{[&](const Call&, Position from, CallBegin) { live.begin(from.call); },
               [&](const Call&, Position from, const StepKind auto& step) {
                 live.follow(from.step, step);
               },
               [&](const Call&, Position, CallEnd) { live.end(); }});
  for (size_t v = 0; v < stage.lifetimes.size(); ++v)
    if (stage.lifetimes[v] == Lifetime::kStep) live.free(static_cast<ValueId>(v));
}

// Each step frees all it allocates: the live bytes before and after are equal, and memory_use()
// bounds the peak.
TEST(Liveness, StepsLeaveWhatTheyFound) {
  const Program program = data_parallel_program({3, 1}, 3).program;
  const LoweredStage& stage = program.stages[0];
  const LivenessFacts facts(stage);
  MemoryMeter meter;
  Liveness live(facts, 0, meter);
  load(stage, live);
  const MemoryUse use = memory_use(stage, 0);
  for (int step = 0; step < 3; ++step) {
    make_step(stage, live);
    EXPECT_EQ(meter.live(), use.persistent);
    EXPECT_EQ(meter.peak(), use.peak);
  }
}

// A finished run frees its memory, even in the middle of a step.
TEST(Liveness, ProgramsShareTheMemoryOfADevice) {
  const Program program = data_parallel_program({3, 1}, 3).program;
  const LoweredStage& stage = program.stages[0];
  const LivenessFacts facts(stage);
  const MemoryUse use = memory_use(stage, 0);
  MemoryMeter meter;
  Liveness one(facts, 0, meter);
  load(stage, one);
  {
    Liveness other(facts, 0, meter);
    load(stage, other);
    EXPECT_EQ(meter.live(), 2 * use.persistent);
    other.begin(0);
    EXPECT_GT(meter.live(), 2 * use.persistent);
  }
  EXPECT_EQ(meter.live(), use.persistent);
}

// The test uses the largest memory that is too small, by one byte.
TEST(Liveness, ShortageOfMemoryIsNamed) {
  const Program program = data_parallel_program({3, 1}, 3).program;
  const LoweredStage& stage = program.stages[0];
  const LivenessFacts facts(stage);
  const int64_t peak = memory_use(stage, 0).peak;
  for (const int64_t capacity : {peak, peak - 1}) {
    MemoryMeter meter("a/0/0", capacity);
    Liveness live(facts, 0, meter);
    load(stage, live);
    try {
      make_step(stage, live);
      EXPECT_EQ(capacity, peak);
    } catch (const Error& error) {
      EXPECT_EQ(capacity, peak - 1);
      EXPECT_EQ(error.blame(), Blame::kCaller);
      EXPECT_THAT(error.what(), HasSubstr("a/0/0: out of memory: "));
    }
  }
}

}  // namespace
}  // namespace medley
